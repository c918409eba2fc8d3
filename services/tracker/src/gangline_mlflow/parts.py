"""The parts that the store needs and MLflow cannot pass on: set once, before MLflow is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gangline_bus.ports import Bus
from gangline_bus.topics import TopicNames
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.history import Histories
from gangline_schemas.gpu_prices import GpuPrices

ARTIFACTS = "gangline-artifacts"
"""The scheme by which MLflow finds our repository of artifacts."""


@dataclass(frozen=True)
class Parts:
    """The bus, ClickHouse and the object store, as this process reaches them; and prices."""

    bus: Bus
    names: TopicNames
    histories: Histories
    artifacts: Artifacts
    beat: Callable[[], None]
    """Called often while the log is read at the start: the process is alive."""
    prices: GpuPrices = field(default_factory=GpuPrices)


_current: list[Parts] = []


def use(parts: Parts) -> None:
    """Set the parts of this process."""
    _current[:] = [parts]


def current() -> Parts:
    """The parts of this process. Raises RuntimeError outside of `python -m gangline_mlflow`."""
    if not _current:
        raise RuntimeError(
            "a store gangline+... is served by `python -m gangline_mlflow` alone: "
            "point MLflow at the gateway instead"
        )
    return _current[0]
