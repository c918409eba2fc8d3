"""`gangline replay` over the log of a real platform: a process of its own, reading real Kafka.

Three jobs of 3 GPUs on 4: `first` runs, `longer` and then `shorter` wait for it. That is looked at
in the middle, and run again through policies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from gangline.errors import ExitCode
from gangline.sdk import Gangline, connect
from support.builders.held_job import held, plain_spec
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import Ran
from support.waiting import DEADLINE_S, wait_until

LEAST_RUN_S = 3.0
"""Of the jobs that wait."""
OFF_S = LEAST_RUN_S / 2
"""A start that waited for a tick, or for a slow machine, may be off by this."""


@dataclass(frozen=True)
class Lived:
    """What the gateway said in the middle: who held what, who waited, and when that was."""

    platform: RunningPlatform
    begin: datetime
    middle: datetime
    first: str
    waiting: tuple[str, str]
    held: tuple[tuple[str, tuple[int, ...]], ...]


def replay(platform: RunningPlatform | None, *arguments: str) -> Ran:
    """The real command, 80 columns wide."""
    where = () if platform is None else ("--data-dir", str(platform.data_dir))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GANGLINE_")}
    program = "from gangline.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "replay", *where, *arguments],
        env={**kept, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def _submit(client: Gangline, name: str, hours: float, **fields: Any) -> str:
    spec = plain_spec(name, "default", 3, expected_runtime_hours=hours, **fields)
    return client.submit(spec).job_id


@pytest.fixture(scope="module")
def lived(platform: RunningPlatform, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """The three jobs have ended; the platform is idle again."""
    gate = tmp_path_factory.mktemp("replay") / "go"
    begin = datetime.now(UTC)
    with connect(platform.client.url, platform.client.token) as client:
        first = _submit(client, "first", 0.05, **held(gate))
        parts = wait_until("first has GPUs", lambda: client.get(first).nodes)
        wait_until("first runs", lambda: client.get(first).state == "running")
        longer = _submit(client, "longer", 0.05, run=f"sleep {LEAST_RUN_S}")
        wait_until("longer waits", lambda: client.explain(longer).waits_for)
        shorter = _submit(client, "shorter", 0.01, run=f"sleep {LEAST_RUN_S}")
        wait_until("shorter waits", lambda: client.explain(shorter).waits_for)
        middle = datetime.now(UTC)
        gate.touch()
        for job_id in (first, longer, shorter):
            assert client.wait(job_id, DEADLINE_S).state == "succeeded"
    return Lived(
        platform=platform,
        begin=begin,
        middle=middle,
        first=first,
        waiting=(longer, shorter),
        held=tuple((part.node_id, tuple(part.gpus)) for part in parts),
    )


def test_jobs_queue_and_allocations_as_they_were(lived: Lived) -> None:
    ran = replay(lived.platform, "--at", lived.middle.isoformat(), "--json")
    assert (ran.code, ran.err) == (ExitCode.DONE, "")
    past = ran.json
    assert datetime.fromisoformat(past["at"]) == lived.middle
    running = [job for job in past["jobs"] if job["position"] is None]
    queue = [job for job in past["jobs"] if job["position"] is not None]
    assert [(job["job_id"], job["state"], job["attempt"]) for job in running] == [
        (lived.first, "running", 1)
    ]
    allocation = running[0]["allocation"]
    assert tuple((part["node_id"], tuple(part["gpus"])) for part in allocation) == lived.held
    assert [(job["job_id"], job["position"]) for job in queue] == [
        (job_id, place) for place, job_id in enumerate(lived.waiting, 1)
    ]
    assert {job["state"] for job in queue} == {"pending"}
    assert {job["team"] for job in past["jobs"]} == {"default"}
    assert {node["node_id"]: node["gpus_used"] for node in past["nodes"]} == {
        "node-0": 0, "node-1": 0,
    } | {node_id: len(gpus) for node_id, gpus in lived.held}  # fmt: skip


def test_the_tables_of_that_time_fit_a_terminal(lived: Lived) -> None:
    ran = replay(lived.platform, "--at", lived.middle.isoformat())
    assert ran.code == ExitCode.DONE, ran.err
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "3 of 4 GPUs allocated, 1 jobs run, 2 waiting" in ran.out
    assert [line for line in ran.out.splitlines() if line[-1:] == ":"] == [
        "jobs:", "queue:", "nodes:",
    ]  # fmt: skip
    assert all(job_id in ran.out for job_id in (lived.first, *lived.waiting))


def test_the_platforms_own_policy_starts_all_as_recorded_and_another_does_not(
    lived: Lived,
) -> None:
    asked = ("--policy", "fair,fifo,sjf", "--from", lived.begin.isoformat())
    ran = replay(lived.platform, *asked, "--json")
    assert ran.code == ExitCode.DONE, ran.err
    found = ran.json
    columns = {column["policy"]: column for column in found["policies"]}
    assert list(columns) == ["recorded", "fair", "fifo", "sjf"]
    assert {column["jobs"] for column in columns.values()} == {3}
    for name in ("fair", "fifo"):
        misses = found["differences"][name]["most"]
        assert all(abs(job["waited_s"] - job["would_wait_s"]) <= OFF_S for job in misses), misses
    other = {job["job_id"]: job for job in found["differences"]["sjf"]["most"]}
    longer, shorter = lived.waiting
    assert other[longer]["would_wait_s"] > other[longer]["waited_s"] + OFF_S
    assert other[shorter]["would_wait_s"] < other[shorter]["waited_s"] - OFF_S
    text = replay(lived.platform, *asked)
    assert text.code == ExitCode.DONE, text.err
    assert max(map(len, text.out.splitlines())) <= 80
    assert text.out.splitlines()[2].split() == ["RECORDED", "FAIR", "FIFO", "SJF"]
    assert re.search(r"sjf: [23] of 3 jobs start at another time", text.out)


def test_before_the_log_began(lived: Lived) -> None:
    ran = replay(lived.platform, "--at", "2001-01-01")
    assert (ran.code, ran.out) == (ExitCode.NOT_FOUND, "")
    assert "the scheduler had decided nothing by 2001-01-01 00:00:00 UTC" in ran.err


def test_a_broker_that_is_not_there() -> None:
    ran = replay(None, "--at", "-1h", "--kafka", "127.0.0.1:9")
    assert (ran.code, ran.out) == (ExitCode.TOOL_ERROR, "")
    assert "the log cannot be read from 127.0.0.1:9" in ran.err
    assert "give its address with --kafka" in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
