"""explain and what-if on the real platform: the scheduler's own answers, through all processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import Ran, runner
from support.waiting import wait_until

Gangline = Callable[..., Ran]
HOLDER = """
name: holder
team: default
run: |
  trap 'exit 0' TERM
  while true; do sleep 0.2; done
resources: {gpus: 3, cpus_per_gpu: 0.1, memory_per_gpu_gb: 0.1}
expected_runtime_hours: 2
stop_grace_seconds: 5
"""


@pytest.fixture
def gangline(platform: RunningPlatform, capsys: pytest.CaptureFixture[str]) -> Gangline:
    run = runner(capsys)
    return lambda *arguments: run("--data-dir", str(platform.data_dir), *arguments)


def test_a_plan_comes_true_and_a_waiting_job_knows_its_start(
    gangline: Gangline, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(HOLDER)
    would = gangline("what-if", str(file), "--json").json
    assert would["starts"] == "now"
    holder = gangline("submit", str(file), "-y").out.strip()
    placed = wait_until("its GPUs", lambda: gangline("show", holder, "--json").json["nodes"])
    assert [(part["node_id"], part["indexes"]) for part in would["nodes"]] == [
        (part["node_id"], part["gpus"]) for part in placed
    ]
    shown = gangline("submit", str(file), "-y", "--set", "resources.gpus=2")
    assert "waits for room" in shown.err
    waiting = shown.out.strip()

    def explained() -> Any:
        found = gangline("explain", waiting, "--json").json
        return found if found["waits_for"] else None

    why = wait_until("the reason why it waits", explained)
    assert (why["code"], why["waits_for"]["position"]) == ("capacity", 1)
    assert why["eta"] is not None
    assert "about" in gangline("explain", waiting).out
    for job_id in (waiting, holder):
        assert gangline("cancel", job_id).code == 0
        assert gangline("watch", job_id).code == 103
