"""The examples of docs/reference/rest.md, run one after the other against the real platform."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from support.fixtures.platform import RunningPlatform
from support.waiting import DEADLINE_S

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "rest.md").read_text(encoding="utf-8")
SETUP = re.findall(r"^```sh setup\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
VARIABLES = "JOB OTHER WAITING STEP SILENCE STUDY PIPED PROMOTION NODE_TOKEN SPARE MADE"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples use curl")
def test_every_example_works(platform: RunningPlatform, tmp_path: Path) -> None:
    assert len(SETUP) == 1
    assert len(BLOCKS) > 23
    (tmp_path / "state").touch()
    environment = {**os.environ, "URL": platform.client.url, "TOKEN": platform.client.token}
    answers = {}
    for block in BLOCKS:
        answers[block] = run(block, environment, tmp_path)
    compared = next(text for block, text in answers.items() if "/compare" in block)
    assert '"hyperparameters.lr"' in compared
    streamed = next(text for block, text in answers.items() if "$OTHER/metrics?name=loss" in block)
    assert "event: history" in streamed
    assert "event: end" in streamed


def run(block: str, environment: dict[str, str], folder: Path) -> str:
    """One example. What only asks is repeated until history has caught up, within a deadline."""
    script = (
        f"set -eu -o pipefail\n{SETUP[0]}\n. ./state\n{block}\n"
        f"for name in {VARIABLES}; do declare -p $name 2>/dev/null || true; done > state.new\n"
        "mv state.new state\n"
    )
    asks = not re.search(r"--json|-X|--data", block)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout
        if not asks or time.monotonic() > deadline:
            pytest.fail(f"{block}\n{done.stdout}\n{done.stderr}")
        time.sleep(0.1)
