"""A rank, an agent or a leader dies or freezes under a job: it ends well, nothing is lost.

One test is a cell of the fault matrix of one machine, drawn by GANGLINE_CHAOS_SEED; `make chaos`
runs all of it.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from chaos.catalog import FAULTS, STRATEGIES
from chaos.matrix import ENDS_S, Matrix
from chaos.platforms import NODES, BreakablePlatform
from gangline.sdk import connect
from gangline_schemas.api.incidents import Incident
from support.builders.held_job import training
from support.fixtures.platform import RunningPlatform, start_platform
from support.harnesses.log_watch import LogWatch
from support.harnesses.up_process import runs
from support.waiting import wait_until

INCIDENT_TIMES = ("failed_at", "allocated_at", "running_at", "first_step_at", "closed_at")
CLOSED = {"outcome", "failure_class", "first_rank", "recover_s", "lost_gpu_s"}

pytestmark = pytest.mark.nightly
CELLS = [
    (fault, strategy) for fault in FAULTS for strategy in STRATEGIES if fault.place == "one machine"
]
DRAWN = int(os.environ.get("GANGLINE_CHAOS_SEED", "7"))


@pytest.fixture(scope="module")
def own_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """A platform of this module alone: it is broken on purpose."""
    data_dir = tmp_path_factory.mktemp("kills")
    running, _ = start_platform(
        data_dir,
        nodes=NODES,
        heartbeat_interval_s=0.5,
        hang_min_s=15.0,
        schedulers=2,
    )
    with running:
        shared = RunningPlatform(running, running.start(), data_dir)
        yield shared
        shared.close()


def kill(platform: RunningPlatform, name: str) -> None:
    """SIGKILL, and wait until the supervisor has seen it go and brought it back."""
    before = platform.pid(name)
    os.kill(before, signal.SIGKILL)

    def back() -> bool:
        (row,) = [r for r in platform.platform.supervisor.status() if r.name == name]
        return row.pid not in (None, before) and row.ready

    wait_until(f"{name} is back", back)


def first_incident(platform: RunningPlatform, job: str) -> Incident:
    """The job's oldest incident as the gateway gives it, once the tracker has its end."""
    with connect(platform.client.url, platform.client.token) as client:

        def closed() -> Incident | None:
            found = client.incidents(job).incidents
            return found[-1] if found and found[-1].outcome != "open" else None

        found: Incident = wait_until(f"a closed incident of {job}", closed)
    return found


def kept_stacks(platform: RunningPlatform, job: str, ranks: int) -> dict[int, tuple[str, str]]:
    """State and stacks of each rank as the incident has them, once the tracker has all."""
    with connect(platform.client.url, platform.client.token) as client:
        wait_until("the stacks", lambda: len(client.incident(job, 1).stacks) == ranks)
        found = client.incident(job, 1).stacks
    return {item.rank: (item.state, item.stacks) for item in found}


def role(data_dir: Path, name: str) -> str:
    """What a scheduler says of itself: `leads shard 0` or `standby`."""
    bound = json.loads((data_dir / "run" / "health" / f"{name}.json").read_text())
    with urllib.request.urlopen(f"{bound['url']}/readyz", timeout=5) as answer:
        checks = json.load(answer)["checks"]
    found: str = next(check["detail"] for check in checks if check["name"] == "role")
    return found


def test_the_standby_takes_over_from_a_frozen_leader(
    own_platform: RunningPlatform, tmp_path: Path
) -> None:
    supervisor, go = own_platform.platform.supervisor, tmp_path / "go"
    names = ["scheduler-0", "scheduler-1"]
    roles = {name: role(own_platform.data_dir, name) for name in names}
    assert sorted(roles.values()) == ["leads shard 0", "standby"]
    leader = next(name for name in names if roles[name] != "standby")
    frozen = own_platform.pid(leader)
    with own_platform.watching() as watch:
        running = watch.submit("goes-on", resources={"gpus": 1}, **training(go))
        watch.wait_step(running, 3)
        epoch = writer_epoch(watch, running)
        os.kill(frozen, signal.SIGSTOP)
        submitted = watch.submit(
            "starts", command=["true"], resources={"gpus": 1}, hyperparameters={}
        )
        watch.wait_for(lambda s: s.type == "gang.allocated" and s.data.job_id == submitted)
        assert writer_epoch(watch, submitted) > epoch, "the frozen leader decided"
        os.kill(frozen, signal.SIGCONT)
        wait_until(
            "the old leader ends",
            lambda: all(row.pid != frozen for row in supervisor.status()),
        )
        watch.wait_state(submitted, "succeeded")
        go.touch()
        assert watch.wait_state(running, "succeeded", "failed").data.state == "succeeded"
        assert len(watch.of("gang.allocated", running)) == 1, "the running job noticed"
        watch.assert_sound()
    supervisor.wait_ready(60)


def writer_epoch(watch: LogWatch, job: str) -> int:
    """Of the scheduler that allocated the job's gang."""
    position = watch.of("gang.allocated", job)[0].envelope.position
    assert position is not None
    return position.writer_epoch


def test_a_killed_rank_is_restarted_from_the_last_checkpoint(
    own_platform: RunningPlatform, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with own_platform.watching() as watch:
        job = watch.submit("resumer", **training(go))
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
        closed = watch.wait_for(lambda s: s.type == "incident.closed" and s.data.job_id == job)
        go.touch()
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
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


def test_a_frozen_rank_is_noticed_and_its_gang_starts_again(
    own_platform: RunningPlatform, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with own_platform.watching() as watch:
        job = watch.submit("frozen", **training(go))
        watch.wait_for(lambda s: s.type == "checkpoint.committed" and s.data.job_id == job)
        watch.wait_step(job, 30)  # its agent has reported how long its steps take
        pids = [s.data.pid for s in watch.of("worker.started", job)]
        os.kill(pids[1], signal.SIGSTOP)
        failed = watch.wait_for(lambda s: s.type == "gang.failed" and s.data.job_id == job)
        assert (failed.data.cause, failed.data.action) == ("hang", "restart")
        assert "no rank made progress: rank" in failed.data.message
        go.touch()
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
    own_platform: RunningPlatform, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with own_platform.watching() as watch:
        job = watch.submit("mover", **training(go))
        watch.wait_for(lambda s: s.type == "checkpoint.committed" and s.data.job_id == job)
        allocated = watch.of("gang.allocated", job)[0].data
        pids = [s.data.pid for s in watch.of("worker.started", job)]
        kill(own_platform, allocated.nodes[0].node_id)
        assert not [pid for pid in pids if runs(pid)], "ranks outlived their agent"
        go.touch()
        again = watch.wait_for(
            lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
        )
        assert again.data.resume is not None
        assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
        watch.assert_sound()


@pytest.mark.timeout(2 * ENDS_S)
def test_a_job_with_a_drawn_fault_ends_as_if_nothing_had_happened(
    own_platform: RunningPlatform,
) -> None:
    (cell,) = Random(DRAWN).sample(CELLS, 1)
    own, folder = own_platform, own_platform.data_dir
    platform = BreakablePlatform(own.platform, own.client, folder, folder / "store")
    with own.watching() as watch:
        assert Matrix(platform, watch).cell(*cell).problem == "", cell
        watch.assert_sound()
