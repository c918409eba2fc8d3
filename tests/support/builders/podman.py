"""Whether podman runs containers here, for tests that need the genuine one."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

from gangline_worker.agent.isolation.files import Owner
from gangline_worker.agent.runtime.podman import Podman


@cache
def lacking() -> str | None:
    """Why it does not, as an agent finds it out."""
    with tempfile.TemporaryDirectory(prefix="gl-") as name:
        place = Path(name) / "root"
        place.mkdir()
        return Podman(place).lacking(Owner(1_900_000_000) if os.geteuid() == 0 else None)


def needs_podman() -> None:
    """Skip the test where it does not."""
    if (reason := lacking()) is not None:
        pytest.skip(f"podman runs no containers here: {reason}")
