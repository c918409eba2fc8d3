"""The `gangline` command against the whole real platform."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import Ran, runner
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
Gangline = Callable[..., Ran]
LONG = """
name: long
team: default
run: |
  trap 'echo stopping; exit 0' TERM
  echo begun
  while true; do sleep 0.2; done
resources: {gpus: 1, cpus_per_gpu: 0.5, memory_per_gpu_gb: 0.1}
stop_grace_seconds: 10
"""
FAILING = """
name: failing
team: default
run: 'if [ "$RANK" = 1 ]; then echo last words >&2; exit 7; fi; sleep 60'
resources: {gpus: 2, cpus_per_gpu: 0.5, memory_per_gpu_gb: 0.1}
stop_grace_seconds: 1
"""


@pytest.fixture
def gangline(platform: RunningPlatform, capsys: pytest.CaptureFixture[str]) -> Gangline:
    run = runner(capsys)
    return lambda *arguments: run("--data-dir", str(platform.data_dir), *arguments)


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return str(path)


def first_line(gangline: Gangline, job_id: str, platform: RunningPlatform) -> None:
    """Until the job has written something."""
    with connect(platform.client.url, platform.client.token) as client:
        next(client.logs(job_id, follow=True))


def test_a_job_is_followed_to_its_end(gangline: Gangline) -> None:
    shown = gangline("submit", str(EXAMPLES / "shell.yaml"), "-y", "--follow")
    assert shown.code == 0, shown.err
    job_id, *lines = shown.out.splitlines()
    assert {"[0] hello", "[1] hello"} <= set(lines)
    assert "fits now" in shown.err
    assert gangline("show", job_id, "--json").json["state"] == "succeeded"
    assert job_id in {item["job_id"] for item in gangline("list", "--json").json}
    assert gangline("watch", job_id).code == 0
    logs = gangline("logs", job_id, "--rank", "1", "-f")
    assert logs.out.splitlines()[-1] == "[1] hello"
    types = {
        item["type"] for item in gangline("events", "--job", job_id, "-f", "--json").json_lines
    }
    assert {"job.submitted", "job.admitted", "gang.allocated", "gang.released"} <= types


def test_a_failed_job_names_the_first_rank(gangline: Gangline, tmp_path: Path) -> None:
    shown = gangline("submit", written(tmp_path, FAILING), "-y", "--wait", "--json")
    assert shown.code == 100
    assert shown.json["failure"]["first_rank"] == 1
    assert "rank 1 on node-" in shown.err
    assert "with exit code 7" in shown.err
    assert "last words" in shown.err
    assert "--rank 1 --attempt 1" in shown.err


def test_cancel(gangline: Gangline, platform: RunningPlatform, tmp_path: Path) -> None:
    job_id = gangline("submit", written(tmp_path, LONG), "-y").out.strip()
    first_line(gangline, job_id, platform)
    assert gangline("watch", job_id, "--timeout", "0").code == 101
    nodes = gangline("nodes", "--json").json
    assert job_id in {name for node in nodes for name in node["jobs"]}
    assert gangline("cancel", job_id).code == 0
    assert gangline("watch", job_id).code == 103
    again = gangline("cancel", job_id)
    assert again.code == 1
    assert "already ended" in again.err


def test_a_job_that_waits_says_why(gangline: Gangline, tmp_path: Path) -> None:
    job_id = gangline(
        "submit", written(tmp_path, LONG), "-y", "--set", "resources.gpus=64"
    ).out.strip()
    try:

        def explained() -> dict[str, str] | None:
            """The scheduler gives its reason shortly after the admission."""
            found: dict[str, str] = gangline("explain", job_id, "--json").json
            return None if found["message"] == "admitted" else found

        found = wait_until("the scheduler's reason", explained)
        assert found["state"] == "pending"
        assert "64 GPUs" in found["message"]
        assert job_id in {entry["job_id"] for entry in gangline("queue", "--json").json["queue"]}
        assert gangline("priority", job_id, "7").code == 0
        assert gangline("show", job_id, "--json").json["priority"] == 7
    finally:
        gangline("cancel", job_id)
    assert gangline("watch", job_id).code == 103
