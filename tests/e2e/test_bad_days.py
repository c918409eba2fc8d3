"""Parts go away while jobs run, as in docs/guides/bad-days.md: what is seen, what is kept."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from gangline_schemas.events.requests import JobCancelRequested
from gangline_schemas.events.scheduling import CheckpointRef
from support.builders.held_job import reporting, training
from support.harnesses.log_watch import PACED, LogWatch, Seen
from support.harnesses.up_process import UpProcess, runs
from support.waiting import DEADLINE_S, wait_until

BROKER_AWAY_S = 20.0
SERVICES = (
    "quota-0", "scheduler-0", "fault-manager-0", "checkpoint-service-0", "tracker-0", "gateway-0",
    "kafka",
)  # fmt: skip
SAVES_OFTEN = {"interval_minutes": 0.015, "keep": {"latest": 2}}


@pytest.fixture(scope="module")
def platform_of_this_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """`gangline up` for these tests alone: it is broken on purpose."""
    process = UpProcess(tmp_path_factory.mktemp("bad") / "days")
    try:
        yield process
        pids = process.pids() if process.running else []
    finally:
        process.stop()
    wait_until("nothing outlives it", lambda: not [pid for pid in pids if runs(pid)])


@pytest.fixture
def up(platform_of_this_module: UpProcess) -> UpProcess:
    """It runs, whatever the test before has left."""
    if not platform_of_this_module.running:
        platform_of_this_module.start()
    return platform_of_this_module


@pytest.fixture
def watch(up: UpProcess) -> Iterator[LogWatch]:
    with LogWatch(up.client.bootstrap_servers) as watch:
        yield watch


def submit_reporting(watch: LogWatch, name: str, gate: Path, gpus: int = 2) -> str:
    resources = {"gpus": gpus, "memory_per_gpu_gb": 0.1}
    return watch.submit(name, resources=resources, **reporting(gate))


def submit_training(watch: LogWatch, name: str, steps: int, **fields: Any) -> str:
    return watch.submit(name, hyperparameters={"steps": steps}, checkpoint=SAVES_OFTEN, **fields)


def wait_commit(watch: LogWatch, job_id: str, above: int = 0) -> Seen:
    return watch.wait_for(
        lambda s: (
            s.type == "checkpoint.committed"
            and s.data.job_id == job_id
            and s.data.checkpoint.step > above
        )
    )


def newest_step(watch: LogWatch, job_id: str) -> int:
    watch.settle()
    reports = [s.data for s in watch.of("worker.step") if s.data.run_id == job_id]
    return max((step for report in reports for step in report.step), default=0)


def steps_of(watch: LogWatch, job_id: str) -> Counter[tuple[int, int]]:
    """How often each (rank, step) was reported, the same event counted once."""
    events = {s.envelope.id: s.data for s in watch.of("worker.step") if s.data.run_id == job_id}
    return Counter((event.rank, step) for event in events.values() for step in event.step)


def assert_one_gang(watch: LogWatch, job_id: str) -> None:
    """The job was never restarted."""
    assert len(watch.of("gang.allocated", job_id)) == 1, [
        seen.data for seen in watch.of("gang.failed", job_id)
    ]


def assert_no_step_is_missing(watch: LogWatch, job_id: str) -> None:
    counted = steps_of(watch, job_id)
    for rank in {rank for rank, _ in counted}:
        steps = sorted(step for other, step in counted if other == rank)
        assert steps == list(range(1, steps[-1] + 1)), f"rank {rank} lost steps"
    assert set(counted.values()) == {1}, "a step was reported by two events"


def assert_no_line_is_missing(watch: LogWatch, job_id: str) -> None:
    firsts: dict[int, dict[int, int]] = {}
    for seen in watch.of("worker.log", job_id):
        firsts.setdefault(seen.data.rank, {})[seen.data.first_line] = len(seen.data.lines)
    for rank, batches in firsts.items():
        expected = 0
        for first, count in sorted(batches.items()):
            assert first == expected, f"rank {rank} lost lines from {expected} on"
            expected = first + count


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that answers nothing and is not dead."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def store_away(up: UpProcess) -> Iterator[None]:
    """A file stands where the store's folder was: nothing can be read or written there."""
    folder = up.data_dir / "store" / "teams"
    aside = folder.with_name("teams-aside")
    folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


@pytest.mark.nightly
def test_training_goes_on_while_the_store_is_away(up: UpProcess, watch: LogWatch) -> None:
    job = submit_training(watch, "storeless", 1_000_000, command=PACED)
    before = wait_commit(watch, job).data.checkpoint.step
    with store_away(up):
        told = watch.wait_for(
            lambda s: (
                s.type == "worker.log"
                and s.data.job_id == job
                and any("could not be stored" in line.text for line in s.data.lines)
            )
        )
        watch.wait_step(job, newest_step(watch, job) + 20)
        during = newest_step(watch, job)
    text = next(line.text for line in told.data.lines if "could not be stored" in line.text)
    assert text.startswith("gangline: the checkpoint of step ")
    after = wait_commit(watch, job, above=during).data.checkpoint.step
    assert before < during < after
    watch.publish(JobCancelRequested(job_id=job), job)
    assert watch.wait_state(job, "cancelled", "failed").data.state == "cancelled"
    assert_one_gang(watch, job)
    watch.assert_sound()


def rows(up: UpProcess, job_id: str) -> tuple[int, int]:
    """Distinct (rank, step) pairs of the job in ClickHouse, and all its rows of one metric.

    (-1, -1) while the tracker is still on its way back.
    """
    host, port = up.client.clickhouse_url.removeprefix("http://").split(":")
    try:
        client = clickhouse_connect.get_client(
            host=host, port=int(port), username="test", password=up.client.token
        )
    except OperationalError:
        return -1, -1
    try:
        query = (
            "SELECT uniqExact(rank, step), count() FROM gangline.steps "
            f"WHERE run_id = '{job_id}' AND name = 'loss'"
        )
        ((distinct, total),) = client.query(query).result_rows
    finally:
        client.close()
    return distinct, total


def test_a_job_does_not_notice_that_the_tracker_is_away(
    up: UpProcess, watch: LogWatch, gate: Path
) -> None:
    job = submit_reporting(watch, "untracked", gate)
    watch.wait_step(job, 5)
    for _ in range(2):
        up.kill("tracker-0")
        watch.wait_step(job, newest_step(watch, job) + 1)
    with stopped(up.pid("tracker-0")):
        watch.wait_step(job, newest_step(watch, job) + 50)
    gate.touch()
    assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
    assert_one_gang(watch, job)
    watch.settle()
    reported = len(steps_of(watch, job))
    wait_until("all rows are there", lambda: rows(up, job)[0] == reported)
    assert rows(up, job) == (reported, reported), "rows differ from records on the bus"


def test_a_job_survives_the_death_of_every_service(
    up: UpProcess, watch: LogWatch, gate: Path
) -> None:
    job = watch.submit("survivor", **training(gate, pause_s=0.5))
    watch.wait_step(job, 5)
    killed = {}
    for name in SERVICES:
        before = len(watch.seen)
        killed[name] = up.pid(name)
        os.kill(killed[name], signal.SIGKILL)
        # Training continued meanwhile, and what it reports arrives.
        watch.wait_for(lambda s: s.type == "worker.step" and s.data.run_id == job, after=before)
    for name, pid in killed.items():
        wait_until(
            f"{name} is back",
            lambda name=name, pid=pid: (
                up.pid(name) != pid and (name == "kafka" or up.is_ready(name))
            ),
        )
    gate.touch()
    assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
    watch.assert_sound()
    assert_one_gang(watch, job)
    first_rank = sorted(step for rank, step in steps_of(watch, job) if rank == 0)
    last = watch.of("worker.exited", job)[0].data.last_step
    assert first_rank == list(range(1, last + 1)), "steps were lost"


@pytest.mark.nightly
def test_twenty_seconds_without_the_broker_lose_and_double_nothing(
    up: UpProcess, watch: LogWatch, gate: Path
) -> None:
    job = submit_reporting(watch, "busless", gate)
    watch.wait_step(job, 5)
    with stopped(up.pid("kafka")):
        threading.Event().wait(BROKER_AWAY_S)  # the length of the fault
    back_ms = time.time_ns() // 1_000_000
    watch.wait_for(
        lambda s: s.type == "worker.step" and s.data.run_id == job and max(s.data.time_ms) > back_ms
    )
    gate.touch()
    changed = watch.wait_state(job, "succeeded", "failed").data
    assert changed.state == "succeeded", changed
    watch.assert_sound()
    assert_one_gang(watch, job)
    assert not [s for s in watch.of("node.failed") if s.data.reason == "silent"]
    assert_no_step_is_missing(watch, job)
    assert_no_line_is_missing(watch, job)


def flip_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def shard_of(up: UpProcess, job_id: str, step: int) -> Path:
    """The first rank's shard in the store."""
    (path,) = (up.data_dir / "store").rglob(f"{job_id}/attempt-*/step-{step:010d}/rank-00000.bin")
    return path


def last_commit(watch: LogWatch, job_id: str) -> CheckpointRef:
    """The newest committed checkpoint of a job that writes no more.

    One whose shards are all written may still be verified: it is waited for.
    """
    watch.settle()
    written = [event.data for event in watch.of("checkpoint.shard.written", job_id)]
    ranks = Counter((shard.attempt, shard.step, shard.world_size) for shard in written)
    whole = max(step for (_, step, world_size), count in ranks.items() if count >= world_size)
    wait_commit(watch, job_id, above=whole - 1)
    found: CheckpointRef = watch.of("checkpoint.committed", job_id)[-1].data.checkpoint
    return found


def test_a_corrupted_checkpoint_is_named_and_an_older_one_is_used(
    up: UpProcess, watch: LogWatch
) -> None:
    job = submit_training(watch, "flipped", 1_000_000, command=PACED)
    wait_commit(watch, job, above=wait_commit(watch, job).data.checkpoint.step)
    pids = [s.data.pid for s in watch.of("worker.started", job)]
    for pid in pids:  # so that no newer checkpoint comes
        os.kill(pid, signal.SIGSTOP)
    newest = last_commit(watch, job)
    shard = shard_of(up, job, newest.step)
    flip_a_byte(shard)  # the node's own copy is the same file under another name
    os.kill(pids[0], signal.SIGKILL)
    corrupted = watch.wait_for(
        lambda s: s.type == "checkpoint.corrupted" and s.data.job_id == job
    ).data
    assert corrupted.step == newest.step
    assert corrupted.key.endswith(str(shard.relative_to(up.data_dir / "store")))
    again = watch.wait_for(
        lambda s: (
            s.type == "gang.allocated"
            and s.data.job_id == job
            and s.data.resume is not None
            and s.data.resume.step < newest.step
        )
    ).data
    first = watch.wait_step(job, 0, attempt=again.attempt)
    assert min(first.data.step) == again.resume.step + 1
    failed = [s.data.message for s in watch.of("gang.failed", job) if s.data.attempt > 1]
    assert failed
    for message in failed:  # of the rank that read it, or of one that waited for that
        assert re.search("its checkpoint (is )?damaged", message)
    wait_commit(watch, job, above=again.resume.step)
    watch.publish(JobCancelRequested(job_id=job), job)
    assert watch.wait_state(job, "cancelled", "failed").data.state == "cancelled"
    watch.assert_sound()


def test_a_full_disk_under_the_spool_costs_metrics_and_not_the_job(
    up: UpProcess, watch: LogWatch, gate: Path
) -> None:
    job = submit_reporting(watch, "spoolless", gate, gpus=1)
    (node,) = watch.wait_for(
        lambda s: s.type == "gang.allocated" and s.data.job_id == job
    ).data.nodes
    agent = up.pid(node.node_id)
    watch.wait_step(job, 200)
    spool = up.data_dir / "nodes" / node.node_id / "spool" / "telemetry"
    size = max(path.stat().st_size for path in spool.glob("*.spool"))
    # What a full disk does to this file: it cannot grow.
    before = resource.prlimit(agent, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        wait_until("it says so", lambda: "spool.not_written" in up.log(node.node_id))
    finally:
        resource.prlimit(agent, resource.RLIMIT_FSIZE, before)
    watch.wait_step(job, newest_step(watch, job) + 20)
    gate.touch()
    assert watch.wait_state(job, "succeeded", "failed").data.state == "succeeded"
    assert_one_gang(watch, job)


def test_a_killed_platform_comes_back_with_its_jobs(
    up: UpProcess, watch: LogWatch, gate: Path
) -> None:
    job = watch.submit("survivor", checkpoint=SAVES_OFTEN, **training(gate))
    committed = wait_commit(watch, job).data.checkpoint
    pids = up.pids()
    ranks = [s.data.pid for s in watch.of("worker.started", job)]
    assert set(ranks) <= set(pids)
    up.kill_supervisor()
    wait_until("nothing outlives it", lambda: not [pid for pid in pids if runs(pid)])
    up.start()
    again = watch.wait_for(
        lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt == 2
    ).data
    assert again.resume.step >= committed.step
    first = watch.wait_step(job, 0, attempt=2)
    assert min(first.data.step) == again.resume.step + 1
    gate.touch()
    changed = watch.wait_state(job, "succeeded", "failed").data
    assert changed.state == "succeeded", changed
    watch.assert_sound()


def test_a_second_platform_on_the_same_data_is_refused(up: UpProcess) -> None:
    second = subprocess.run(
        up.command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert second.returncode == 1, second.stderr
    assert "is in use by a running platform (pid " in second.stderr
    assert "stop that one first, or choose another data directory" in second.stderr
    assert up.pids(), "the first one was disturbed"
