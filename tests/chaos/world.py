"""A job under attack, and the checks of it when it has ended."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from chaos.platforms import BreakablePlatform
from gangline_schemas.checkpoint import CommitRecord
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_storage.digest import digest_file
from support.harnesses.log_watch import DEADLINE_S, TRAINER, LogWatch, Seen

STEPS = 300
SAVE_EVERY = 25
HYPERPARAMETERS = {
    "steps": STEPS,
    "checkpoint_every_steps": SAVE_EVERY,
    "seed": 17,
    "strategy": "fsdp",
}
CHECKPOINT = {"interval_minutes": 60, "keep": {"latest": 3}}
RESTARTS = 10


class Broken(AssertionError):
    """Something that must hold did not."""


@dataclass
class Attack:
    """One running job and the platform around it; a fault gets hold of it."""

    platform: BreakablePlatform
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

    def newest_saved(self) -> int:
        """The step of the newest that all nodes have on their disks; 0: none."""
        return max((s.data.step for s in self.watch.of("checkpoint.saved", self.job)), default=0)

    def pids(self) -> list[int]:
        """The ranks of the newest attempt, by rank."""
        started = [seen.data for seen in self.watch.of("worker.started", self.job)]
        newest = max(item.attempt for item in started)
        ranks = {item.rank: item.pid for item in started if item.attempt == newest}
        return [ranks[rank] for rank in sorted(ranks)]

    def attempt(self) -> int:
        """The newest one."""
        number: int = self.watch.of("gang.allocated", self.job)[-1].data.attempt
        return number

    def node(self) -> str:
        """The node of rank 0 of the newest attempt."""
        node: str = self.watch.of("gang.allocated", self.job)[-1].data.nodes[0].node_id
        return node

    def local_files(self, attempt: int, step: int) -> Path:
        """Where the node of rank 0 keeps its copy of a checkpoint."""
        at = f"{self.job}/attempt-{attempt:04d}/step-{step:010d}"
        return self.platform.data_dir / "nodes" / self.node() / "checkpoints" / at

    def wait_local(self, step: int, name: str = "") -> None:
        """Until the node of rank 0 has the folder of this step's save, or a file in it.

        Looked for again and again: the log tells of it too late to strike while it is written.
        """
        path = self.local_files(self.attempt(), step) / name
        deadline = time.monotonic() + DEADLINE_S
        while not path.exists():
            if time.monotonic() > deadline:
                raise Broken(f"{path} did not come")
            time.sleep(0.0005)

    def stored_files(self, ref: CheckpointRef) -> Path:
        """Where the store keeps it."""
        return (self.platform.store_dir / ref.commit_key).parent

    def last_step(self, attempt: int) -> int:
        """The furthest that this attempt has reported."""
        return max(
            (
                max(seen.data.step)
                for seen in self.watch.of("worker.step")
                if seen.data.run_id == self.job and seen.data.attempt == attempt
            ),
            default=0,
        )

    def wait_node_log(self, text: str, or_attempt: int) -> None:
        """Until the agent of the job's node says so, or the job has this attempt."""
        path = self.platform.data_dir / "logs" / f"{self.node()}.log"
        deadline = time.monotonic() + DEADLINE_S
        while self.attempt() < or_attempt and text not in path.read_text(encoding="utf-8"):
            if time.monotonic() > deadline:
                raise Broken(f"{text!r} did not come in {path}")
            self.watch.poll()

    def kill_rank(self, rank: int = 1) -> None:
        """Kill -9."""
        _signal(self.pids()[rank], signal.SIGKILL)

    def agent_tree(self) -> list[int]:
        """The agent of that node and everything below it, leaves first."""
        agent = psutil.Process(self.platform.pid(self.node()))
        return [*(child.pid for child in reversed(agent.children(recursive=True))), agent.pid]


def submit(
    watch: LogWatch,
    name: str,
    strategy: str,
    more: Mapping[str, object],
    command: Sequence[str] = TRAINER,
) -> str:
    """The job of all cells, with further hyperparameters; its id."""
    return watch.submit(
        name,
        command=list(command),
        env={"PAUSE_S": "0.03"},
        hyperparameters={**HYPERPARAMETERS, **more, "strategy": strategy},
        checkpoint=CHECKPOINT,
        restart={"max": RESTARTS},
        resources={"gpus": 2, "memory_per_gpu_gb": 0.25},
    )


def losses(watch: LogWatch, job: str) -> dict[int, set[float]]:
    """Every loss that was reported for each step and is a number, over all attempts."""
    watch.settle()
    found: dict[int, set[float]] = {}
    for seen in watch.of("worker.step"):
        if seen.data.run_id == job and seen.data.rank == 0 and "loss" in seen.data.metrics:
            for step, loss in zip(seen.data.step, seen.data.metrics["loss"], strict=True):
                # None: another metric of that step alone. No number: of a step that was left out.
                if loss is not None and math.isfinite(loss):
                    found.setdefault(step, set()).add(loss)
    return found


def wrong_losses(attack: Attack, undisturbed: dict[int, set[float]], *, gaps: bool) -> str:
    """Where the job's losses are not the undisturbed run's; "" when all are."""
    mine = losses(attack.watch, attack.job)
    missing = sorted(set(range(1, STEPS + 1)) - set(mine))
    if missing and not gaps:
        return f"steps were lost: {missing[:5]}"
    differing = [step for step, found in sorted(mine.items()) if found != undisturbed[step]]
    if differing:
        return f"the loss differs from the undisturbed run's from step {differing[0]} on"
    return ""


def lost_checkpoint(attack: Attack) -> str:
    """A committed checkpoint that is not whole, though neither deleted nor called corrupt."""
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


def damaged_data(watch: LogWatch, job: str, metric: str) -> int:
    """What the job's ranks have counted of damaged data, the highest that any has reported."""
    found = [
        value
        for seen in watch.of("worker.step")
        if seen.data.run_id == job
        for value in seen.data.metrics.get(metric, ())
        if value is not None
    ]
    return int(max(found, default=0))


def steps_repeated(watch: LogWatch, job: str) -> int:
    """How many steps were taken again by a later attempt."""
    taken = {
        (seen.data.attempt, step)
        for seen in watch.of("worker.step")
        if seen.data.run_id == job and seen.data.rank == 0
        for step in seen.data.step
    }
    return len(taken) - len({step for _, step in taken})


def recovered_s(watch: LogWatch, job: str) -> float | None:
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
