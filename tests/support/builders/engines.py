"""Whether a container engine runs containers here, for tests that need the genuine one."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.runtime.containers import ENGINES
from gangline_worker.agent.runtime.engine import Engine


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
