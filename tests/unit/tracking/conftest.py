"""A small tracking server, and an environment in which the SDK finds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.tracking import start
from support.fakes.tracking_server import TOKEN, TrackingStub, tracking_stub

JOB = ("GANGLINE_JOB_ID", "RANK", "GANGLINE_HYPERPARAMETERS", "MLFLOW_TRACKING_URI")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TrackingStub]:
    for name in JOB:
        monkeypatch.delenv(name, raising=False)
    with tracking_stub() as stub:
        monkeypatch.setenv("GANGLINE_URL", stub.url)
        monkeypatch.setenv("GANGLINE_TOKEN", TOKEN)
        monkeypatch.setenv("GANGLINE_DIR", str(tmp_path / "kept"))
        yield stub
        run = start.active_run()
        if run is not None:
            run.end("FAILED", timeout_s=0.5)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where runs are kept."""
    return tmp_path / "kept"
