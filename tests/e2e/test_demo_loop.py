"""The story of `gangline demo --loop`, told on the session's platform."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.demo.loop import play
from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform


def test_the_loop_leads_from_a_snapshot_to_the_model_that_serves(
    platform: RunningPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.setenv(name, "")  # the story sets it
    said: list[str] = []
    token = platform.client.token
    with connect(platform.client.url, token) as client:
        outcome = play(client, token, tmp_path, said.append)
    assert outcome.succeeded, outcome.checks
    output = "\n".join(said)
    assert re.search(r"study of 4 trials: trial \d is best", output)
    for line in (
        "prepare cached",
        "the gate says pass",
        "the gate says fail",
        "rolled back from version 2 to 1",
    ):
        assert line in output
    assert "steps:" in (tmp_path / "search.yaml").read_text(encoding="utf-8")
