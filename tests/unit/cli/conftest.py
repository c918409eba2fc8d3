"""The stub gateway, and the command pointed at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fakes.stub_gateway import NODE, TEAM, TOKEN, Stub, stub
from support.harnesses.cli_run import Runner, runner

__all__ = ["stub"]


@pytest.fixture
def gangline(
    stub: Stub,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Runner:
    """The command, which finds the stub by its environment and asks again soon."""
    monkeypatch.setattr("gangline.sdk.waiting.FIRST_POLL_S", 0.01)
    monkeypatch.setattr("gangline.sdk.pipelines._POLL_S", 0.01)
    monkeypatch.setenv("GANGLINE_URL", stub.url)
    monkeypatch.setenv("GANGLINE_TOKEN", TOKEN)
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(tmp_path / "no-platform"))
    stub.on("GET", "/v1/teams", {"teams": [TEAM]})
    stub.on("GET", "/v1/nodes", {"nodes": [NODE]})
    return runner(capsys)
