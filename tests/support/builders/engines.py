"""Container engines: whether one runs containers here, and a container for command lines."""

from __future__ import annotations

import os
import resource
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.isolation.groups import GangLimits
from gangline_worker.agent.isolation.sandbox import ImageRoot
from gangline_worker.agent.runtime.containers import ENGINES
from gangline_worker.agent.runtime.engine import Container, Engine

CONTAINER = Container(
    name="gangline-1-j-2",
    labels=("gangline.dev/job=job-1",),
    image=ImageRoot(Path("/data/images/layers"), ("low/files", "high/files"), "/srv/app"),
    environment={"PATH": "/opt/bin", "A": "b c"},
    show=(Path("/data/work"),),
    limits=GangLimits(8 << 30),
    rank_bytes=4 << 30,
    processes=300,
    owner=Owner(1_900_000_007),
)


def node_with_gpu(monkeypatch: pytest.MonkeyPatch, engine: ModuleType, memlock: int) -> None:
    """A node of one GPU, one device of InfiniBand and these limits, for an engine's module."""
    limits = {resource.RLIMIT_MEMLOCK: memlock, resource.RLIMIT_NOFILE: 1024}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (0, limits.get(kind, 9000)))
    devices = ["/dev/nvidia0", "/dev/infiniband/uverbs0"]
    drivers = {"/usr/local/nvidia/lib64/libcuda.so.1": "/lib/libcuda.so"}
    monkeypatch.setattr(
        engine, "accelerators", lambda *, without_gpus: devices[1 if without_gpus else 0 :]
    )
    monkeypatch.setattr(engine, "driver_files", lambda _: drivers)


@cache
def _tried(name: str) -> tuple[str | None, bool]:
    """Why it does not, and whether it has limits, as an agent finds it out."""
    with tempfile.TemporaryDirectory(prefix="gl-") as folder:
        place = Path(folder) / "root"
        place.mkdir()
        made = ENGINES[name](place)
        lacking = made.lacking(Owner(1_900_000_000) if os.geteuid() == 0 else None)
        return lacking, made.limits


def engine(name: str, place: Path) -> Engine:
    """An engine with such limits as it has here."""
    return ENGINES[name](place, limits=_tried(name)[1])


def needs_engine(name: str) -> None:
    """Skip the test where it does not."""
    if (reason := _tried(name)[0]) is not None:
        pytest.skip(f"{name} runs no containers here: {reason}")
