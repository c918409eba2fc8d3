"""A platform, the undisturbed run of each strategy, and a job under attack."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gangline_schemas.checkpoint import CommitRecord
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_storage.digest import digest_file
from log_watch import LogWatch, Seen
from platform_fixture import RunningPlatform

STEPS = 600
SAVE_EVERY = 50
HYPERPARAMETERS = {"steps": STEPS, "checkpoint_every_steps": SAVE_EVERY, "seed": 17}
CHECKPOINT = {"interval_minutes": 60, "keep": {"latest": 3}}
RESTARTS = 10


class Broken(AssertionError):
    """Something that must hold did not."""


@dataclass(frozen=True)
class Outcome:
    """What came of one cell."""

    fault: str
    strategy: str
    attempts: int
    steps_repeated: int
    recovered_s: float | None
    corruptions: int
    problem: str = ""


@dataclass
class Attack:
    """One running job and the platform around it; a fault gets hold of it."""

    platform: RunningPlatform
    watch: LogWatch
    job: str

    def wait(self, kind: str, wanted: Callable[[Any], bool] = lambda _: True) -> Seen:
        """The job's first event of this type that is wanted."""
        return self.watch.wait_for(
            lambda s: s.type == kind and _job_of(s) == self.job and wanted(s.data)
        )

    def wait_committed(self, step: int = SAVE_EVERY) -> CheckpointRef:
        """The first committed checkpoint of this step or a later one."""
        found = self.wait("checkpoint.committed", lambda data: data.checkpoint.step >= step)
        ref: CheckpointRef = found.data.checkpoint
        return ref

    def newest_commit(self) -> CheckpointRef:
        """The newest of those that were seen."""
        ref: CheckpointRef = self.watch.of("checkpoint.committed", self.job)[-1].data.checkpoint
        return ref

    def pids(self) -> list[int]:
        """The ranks of the newest attempt, by rank."""
        started = [seen.data for seen in self.watch.of("worker.started", self.job)]
        newest = max(item.attempt for item in started)
        ranks = {item.rank: item.pid for item in started if item.attempt == newest}
        return [ranks[rank] for rank in sorted(ranks)]

    def node(self) -> str:
        """The node of rank 0 of the newest attempt."""
        node: str = self.watch.of("gang.allocated", self.job)[-1].data.nodes[0].node_id
        return node

    def local_files(self, ref: CheckpointRef) -> Path:
        """Where the node of rank 0 keeps its copy of a checkpoint."""
        at = f"{self.job}/attempt-{ref.attempt:04d}/step-{ref.step:010d}"
        return self.platform.data_dir / "nodes" / self.node() / "checkpoints" / at

    def stored_files(self, ref: CheckpointRef) -> Path:
        """Where the store keeps it."""
        return (self.platform.data_dir / "store" / ref.commit_key).parent

    def kill_rank(self, rank: int = 1) -> None:
        """Kill -9."""
        _signal(self.pids()[rank], signal.SIGKILL)

    def agent_tree(self) -> list[int]:
        """The agent of that node and everything below it, leaves first."""
        agent = psutil.Process(self.platform.pid(self.node()))
        return [*(child.pid for child in reversed(agent.children(recursive=True))), agent.pid]


def submit(watch: LogWatch, name: str, strategy: str) -> str:
    """The job of all cells; its id."""
    return watch.submit(
        name,
        hyperparameters={**HYPERPARAMETERS, "strategy": strategy},
        checkpoint=CHECKPOINT,
        restart={"max": RESTARTS},
        resources={"gpus": 2, "memory_per_gpu_gb": 0.25},
    )


def losses(watch: LogWatch, job: str) -> dict[int, set[float]]:
    """Every loss that was reported for each step, over all attempts."""
    watch.settle()
    found: dict[int, set[float]] = {}
    for seen in watch.of("worker.step"):
        if seen.data.run_id == job and seen.data.rank == 0 and "loss" in seen.data.metrics:
            for step, loss in zip(seen.data.step, seen.data.metrics["loss"], strict=True):
                if loss is not None:  # another metric of that step alone
                    found.setdefault(step, set()).add(loss)
    return found


def problem_of(attack: Attack, undisturbed: dict[int, set[float]]) -> str:
    """What does not hold of a job that has ended; "" when all is well."""
    watch, job = attack.watch, attack.job
    state = watch.wait_state(job, "succeeded", "failed", "cancelled").data
    if state.state != "succeeded":
        return f"the job {state.state}: {state.reason}"
    mine = losses(watch, job)
    if set(mine) != set(range(1, STEPS + 1)):
        return f"steps were lost: {sorted(set(range(1, STEPS + 1)) - set(mine))[:5]}"
    differing = [step for step, found in sorted(mine.items()) if found != undisturbed[step]]
    if differing:
        return f"the loss differs from the undisturbed run's from step {differing[0]} on"
    return _lost_checkpoint(attack)


def _lost_checkpoint(attack: Attack) -> str:
    """A committed checkpoint that nobody deleted or called corrupt, and that is not whole."""
    for seen in attack.watch.of("checkpoint.committed", attack.job):
        ref = seen.data.checkpoint
        problem = _not_whole(attack.stored_files(ref))
        if problem:
            attack.watch.settle()  # it is deleted only after the log says so
            if (ref.attempt, ref.step) not in _given_up(attack):
                return f"the committed checkpoint of step {ref.step}: {problem}"
    return ""


def _not_whole(folder: Path) -> str:
    """What its commit record promises and is not there; "" for a whole checkpoint."""
    try:
        record = CommitRecord.decode((folder / "COMMIT.json").read_bytes())
        for item in (*record.manifests, *record.shards):
            if digest_file(folder / Path(item.key).name) != item.xxh3:
                return f"{item.key} is corrupt, and nobody has noticed"
    except OSError as error:
        return f"{error}"
    return ""


def _given_up(attack: Attack) -> set[tuple[int, int]]:
    """(attempt, step) of the checkpoints that count no more, and of whom that is known."""
    return {
        (seen.data.attempt, seen.data.step)
        for kind in ("checkpoint.deleted", "checkpoint.corrupted")
        for seen in attack.watch.of(kind, attack.job)
    }


def summary(attack: Attack, fault: str, strategy: str, problem: str) -> Outcome:
    """The cell's row."""
    watch, job = attack.watch, attack.job
    attempts = len(watch.of("gang.allocated", job))
    reported = [
        step
        for seen in watch.of("worker.step")
        if seen.data.run_id == job and seen.data.rank == 0
        for step in seen.data.step
    ]
    return Outcome(
        fault,
        strategy,
        attempts,
        len(reported) - len(set(reported)),
        _recovered_s(watch, job),
        len(watch.of("checkpoint.corrupted", job)),
        problem,
    )


def _recovered_s(watch: LogWatch, job: str) -> float | None:
    """From the first verdict on a failure to the next attempt's first step, in seconds."""
    failed = watch.of("gang.failed", job)
    if not failed:
        return None
    after = failed[0].data.attempt
    steps = [
        seen.envelope.time
        for seen in watch.of("worker.step")
        if seen.data.run_id == job and seen.data.attempt > after
    ]
    return (min(steps) - failed[0].data.failed_at).total_seconds() if steps else None


def _job_of(seen: Seen) -> str | None:
    return getattr(seen.data, "job_id", None) or getattr(seen.data, "run_id", None)


def _signal(pid: int, number: int) -> None:
    os.kill(pid, number)
