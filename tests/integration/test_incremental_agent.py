"""Incremental saves of a real rank under a real agent: informed of commits, killed, damaged."""

from __future__ import annotations

import os
import signal
import textwrap

from gangline_checkpoints.core.model import StepId, Verified, Verify
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_schemas.checkpoint import RankManifest, commit_key, job_prefix
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    ReleaseReason,
    ResumePointChanged,
)
from gangline_schemas.events.workers import CheckpointShardWritten, WorkerStarted
from gangline_storage import LocalStore
from support.fixtures.node import scene
from support.harnesses.node import TEAM, NodeHarness

__all__ = ["scene"]  # a fixture is used by being in this module

JOB = "job-1"
HALF_FROZEN = textwrap.dedent("""
    import time
    import torch
    from gangline_worker import restore, save

    counted = torch.arange(300_000).remainder(1000.0)
    state = {"frozen": counted.clone(), "trained": counted.clone()}
    found = restore(state)
    step = found.step if found else 0
    if found:
        right = torch.equal(state["frozen"], counted)
        right = right and torch.equal(state["trained"], counted + step)
        print("restored", step, right, flush=True)
    while True:
        state["trained"] += 1
        step += 1
        save(state, step)
        time.sleep(0.5)
""")


class Service:
    """What the checkpoint service and the scheduler do about what an attempt wrote."""

    def __init__(self, scene: NodeHarness, allocation: GangAllocated) -> None:
        self.scene = scene
        self.prefix = job_prefix(TEAM, JOB, allocation.spec)
        self.store = LocalStore(scene.store)
        self.execute = StoreExecutor(self.store)

    def manifest(self, part: CheckpointShardWritten) -> RankManifest:
        return RankManifest.decode(self.store.get(part.manifest.key))

    def commit(self, part: CheckpointShardWritten) -> tuple[CheckpointRef, Verified]:
        """Verify, put the record, and tell the agent."""
        place = StepId(part.attempt, part.step)
        found = self.execute("verify", Verify(JOB, self.prefix, place, 1, (part,), 0))
        assert isinstance(found, Verified), found
        key = commit_key(self.prefix, *place)
        ref = CheckpointRef(
            job_id=JOB, attempt=place.attempt, step=place.step, world_size=1, commit_key=key
        )
        self.scene.publish(JOB, ResumePointChanged(job_id=JOB, checkpoint=ref))
        return ref, found

    def written(self, attempt: int, *, refers: bool) -> CheckpointShardWritten:
        """The first part of an attempt that refers to an earlier one, or to none."""

        def wanted() -> list[CheckpointShardWritten]:
            parts = [
                part for part in self.scene.of(CheckpointShardWritten) if part.attempt == attempt
            ]
            return [part for part in parts if bool(self.manifest(part).refers) == refers]

        self.scene.wait(lambda: bool(wanted()), f"attempt {attempt} saved nothing like it")
        return wanted()[0]


def test_half_is_written_and_a_killed_rank_comes_back_bit_for_bit(scene: NodeHarness) -> None:
    node = scene.start_agent()
    spec = {
        "command": ["python", "-c", HALF_FROZEN],
        "checkpoint": {"incremental": {"full_every": 1000}},
    }
    first = scene.allocate(node, gpus=(0,), **spec)
    service = Service(scene, first)
    base, whole = service.commit(service.written(1, refers=False))
    ref, half = service.commit(service.written(1, refers=True))
    assert half.refers == (base.step,)
    assert 0.48 < half.size_bytes / whole.size_bytes < 0.53

    [started] = scene.of(WorkerStarted)
    os.kill(started.pid, signal.SIGKILL)
    scene.exits(1)
    scene.release(first, ReleaseReason.RESTARTING)
    folder = scene.folder / "node" / "checkpoints" / JOB / "attempt-0001"
    copy = folder / f"step-{base.step:010d}" / "rank-00000.bin"
    copy.unlink(missing_ok=True)

    scene.allocate(node, attempt=2, gpus=(0,), resume=ref, **spec)
    service.commit(service.written(2, refers=False))
    _, again = service.commit(service.written(2, refers=True))

    def restored() -> list[str]:
        return [line for line in scene.lines(0, 2) if line.startswith("restored")]

    scene.wait(lambda: bool(restored()), "it said nothing")
    assert restored() == [f"restored {ref.step} True"]
    assert again.refers[0] > ref.step
