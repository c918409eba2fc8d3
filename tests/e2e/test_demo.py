"""The demo's story: its own checks decide its exit code; here its words and files are read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_demo_shows_a_jobs_whole_life_through_a_failure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from gangline.main import main; main()", "demo", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout
    assert "waits: needs 4 GPUs together; 0 of 4 are free" in output
    assert re.search(r"rank 2 on node-\d was ended by SIGKILL; attempt 2 resumes from step", output)
    assert re.search(r"hyperparameters\.lr\s+0\.005\s+0\.001", output)
    assert re.search(r"restarts\s+1\s+0\b", output)
    assert " NO" not in output
    assert max(len(line) for line in output.splitlines() if not line.startswith("[")) <= 80
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "kill -&gt; first new step (s)" in page
    assert re.search(r"then the page is http://127\.0\.0\.1:\d+/console/", output)
    held = subprocess.run(
        ["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert held.stdout == "", "the demo left processes behind"


@pytest.mark.nightly  # its story is played on the shared platform: test_demo_stories.py
def test_the_loop_leads_from_a_snapshot_to_the_model_that_serves(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from gangline.main import main; main()", "demo", "--loop",
         "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    output = done.stdout
    assert re.search(r"study of 4 trials: trial \d is best", output)
    assert "prepare cached" in output
    assert "the gate says pass" in output
    assert "the gate says fail" in output
    assert "rolled back from version 2 to 1" in output
    assert " NO" not in output
    assert "steps:" in (tmp_path / "loop" / "search.yaml").read_text(encoding="utf-8")
