"""Each part in turn is killed with -9 while a job runs: it finishes, nothing lost or doubled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gangline.sdk import connect
from gangline_schemas.api.incidents import Incident
from log_watch import PACED, LogWatch
from platform_fixture import RunningPlatform, start_platform

SERVICES = [
    "quota-0",
    "scheduler-0",
    "fault-manager-0",
    "checkpoint-service-0",
    "tracker-0",
    "gateway-0",
    "kafka",
]

INCIDENT_TIMES = ("failed_at", "allocated_at", "running_at", "first_step_at", "closed_at")
CLOSED = {"outcome", "failure_class", "first_rank", "recover_s", "lost_gpu_s"}


@pytest.fixture(scope="module")
def own_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """A platform of this module alone: it is broken on purpose."""
    data_dir = tmp_path_factory.mktemp("kills")
    running, _ = start_platform(
        data_dir,
        heartbeat_timeout_s=30.0,
        heartbeat_interval_s=0.5,
        hang_min_s=10.0,
        schedulers=2,
    )
    with running:
        yield RunningPlatform(running, running.start(), data_dir)


def kill(platform: RunningPlatform, name: str) -> None:
    """SIGKILL, and wait until the supervisor has seen it go and brought it back."""
    before = platform.pid(name)
    os.kill(before, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        (row,) = [r for r in platform.platform.supervisor.status() if r.name == name]
        if row.pid not in (None, before) and row.ready:
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} did not come back")


def runs(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def first_incident(platform: RunningPlatform, job: str) -> Incident:
    """The job's oldest incident as the gateway gives it, once the tracker has its end."""
    deadline = time.monotonic() + 60
    with connect(platform.client.url, platform.client.token) as client:
        while time.monotonic() < deadline:
            found = client.incidents(job).incidents
            if found and found[-1].outcome != "open":
                return found[-1]
            time.sleep(0.1)
    raise AssertionError(f"no incident of {job} was closed")


def kept_stacks(platform: RunningPlatform, job: str, ranks: int) -> dict[int, tuple[str, str]]:
    """State and stacks of each rank as the incident has them, once the tracker has all."""
    deadline = time.monotonic() + 60
    with connect(platform.client.url, platform.client.token) as client:
        while time.monotonic() < deadline:
            found = client.incident(job, 1).stacks
            if len(found) == ranks:
                return {item.rank: (item.state, item.stacks) for item in found}
            time.sleep(0.1)
    raise AssertionError(f"the stacks of {job} are not with its incident")


def test_a_job_survives_the_death_of_every_service(
    own_platform: RunningPlatform, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with LogWatch(own_platform.client.bootstrap_servers) as watch:
        slowly = {"PAUSE_S": "0.5", "UNTIL": str(go)}
        job = watch.submit("survivor", command=PACED, env=slowly, hyperparameters={"steps": 300})
        watch.wait_step(job, 5)
        for name in SERVICES:
            before = len(watch.of("worker.step", None))
            kill(own_platform, name)
            # Training went on meanwhile, and what it reports arrives.
            watch.wait_for(lambda s: s.type == "worker.step" and s.data.run_id == job, after=before)
        go.touch()
        changed = watch.wait_state(job, "succeeded", "failed", timeout_s=240)
        assert changed.data.state == "succeeded", changed.data
        watch.assert_sound()
        assert len(watch.of("gang.allocated", job)) == 1, "a service's death restarted the gang"
        reported = sorted(
            step
            for seen in watch.of("worker.step")
            if seen.data.run_id == job and seen.data.rank == 0
            for step in seen.data.step
        )
        assert sorted(set(reported)) == list(range(1, 301)), "steps were lost"


def test_a_killed_rank_is_restarted_from_the_last_checkpoint(
    own_platform: RunningPlatform,
) -> None:
    with LogWatch(own_platform.client.bootstrap_servers) as watch:
        job = watch.submit("resumer", hyperparameters={"steps": 300})
        committed = watch.wait_for(
            lambda s: s.type == "checkpoint.committed" and s.data.job_id == job
        )
        started = [s.data for s in watch.of("worker.started", job)]
        os.kill(next(s.pid for s in started if s.rank == 1), signal.SIGKILL)
        failed = watch.wait_for(lambda s: s.type == "gang.failed" and s.data.job_id == job)
        assert (failed.data.first_rank, failed.data.signal) == (1, 9)
        assert failed.data.action == "restart"
        again = watch.wait_for(
            lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
        )
        assert again.data.resume.step >= committed.data.checkpoint.step
        first = watch.wait_step(job, 0, attempt=2)
        assert min(first.data.step) == again.data.resume.step + 1
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        closed = watch.wait_for(lambda s: s.type == "incident.closed" and s.data.job_id == job)
        assert (closed.data.outcome, closed.data.next_attempt) == ("recovered", 2)
        assert closed.data.resume_step == again.data.resume.step
        times = [getattr(closed.data, name) for name in INCIDENT_TIMES]
        assert times == sorted(times)
        assert first_incident(own_platform, job).model_dump(include=CLOSED) == {
            "outcome": "recovered",
            "failure_class": "process",
            "first_rank": 1,
            "recover_s": closed.data.recover_s,
            "lost_gpu_s": closed.data.lost_gpu_s,
        }
        watch.assert_sound()


def test_a_frozen_rank_is_noticed_and_its_gang_starts_again(own_platform: RunningPlatform) -> None:
    with LogWatch(own_platform.client.bootstrap_servers) as watch:
        job = watch.submit("frozen", hyperparameters={"steps": 300})
        watch.wait_for(lambda s: s.type == "checkpoint.committed" and s.data.job_id == job)
        watch.wait_step(job, 12)
        pids = [s.data.pid for s in watch.of("worker.started", job)]
        os.kill(pids[1], signal.SIGSTOP)
        failed = watch.wait_for(lambda s: s.type == "gang.failed" and s.data.job_id == job)
        assert (failed.data.cause, failed.data.action) == ("hang", "restart")
        assert "no rank made progress: rank" in failed.data.message
        again = watch.wait_for(
            lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
        )
        assert again.data.resume is not None
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        assert not [pid for pid in pids if runs(pid)], "frozen ranks live on"
        stacks = {s.data.rank: s.data for s in watch.of("worker.stacks", job)}
        assert stacks[1].state == "stopped"
        assert all("trainer.py" in item.stacks for item in stacks.values())
        assert first_incident(own_platform, job).failure_class == "hang"
        assert kept_stacks(own_platform, job, len(stacks)) == {
            rank: (item.state, item.stacks) for rank, item in stacks.items()
        }
        watch.assert_sound()


def test_a_node_agent_that_dies_takes_its_ranks_along_and_the_job_moves_on(
    own_platform: RunningPlatform,
) -> None:
    with LogWatch(own_platform.client.bootstrap_servers) as watch:
        job = watch.submit("mover", hyperparameters={"steps": 300})
        watch.wait_for(lambda s: s.type == "checkpoint.committed" and s.data.job_id == job)
        allocated = watch.of("gang.allocated", job)[0].data
        pids = [s.data.pid for s in watch.of("worker.started", job)]
        kill(own_platform, allocated.nodes[0].node_id)
        assert not [pid for pid in pids if runs(pid)], "ranks outlived their agent"
        again = watch.wait_for(
            lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
        )
        assert again.data.resume is not None
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        watch.assert_sound()
