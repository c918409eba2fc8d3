"""The stories of `gangline demo` and `gangline demo --loop`, played on the session's platform.

test_demo.py runs the commands themselves, each with a platform of its own: `make soak`.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from gangline.demo import story
from gangline.demo.loop import play
from gangline.demo.report import write_report
from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform


@pytest.mark.nightly
def test_a_job_s_whole_life_through_a_failure(
    platform: RunningPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teams = {"default": 5e-3, "research": 1e-3}  # of this platform
    monkeypatch.setattr(story, "LEARNING_RATES", teams)
    said: list[str] = []
    with connect(platform.client.url, platform.client.token) as client:
        outcome = story.play(client, said.append)
    assert outcome.succeeded, outcome.checks
    told = "\n".join(said)
    assert "waits: needs 4 GPUs together; 0 of 4 are free" in told
    assert re.search(r"rank 2 on node-\d was ended by SIGKILL; attempt 2 resumes from step", told)
    shown = io.StringIO()
    write_report(outcome, tmp_path, Console(file=shown, width=80))
    output = shown.getvalue()
    assert re.search(r"hyperparameters\.lr\s+0\.005\s+0\.001", output)
    assert re.search(r"restarts\s+1\s+0\b", output)
    assert " NO" not in output
    assert max(len(line) for line in output.splitlines()) <= 80
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "kill -&gt; first new step (s)" in page


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
