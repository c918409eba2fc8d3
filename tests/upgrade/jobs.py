"""The jobs that train while parts change, and the account of their steps.

Each step of a job's rank 0 must be on the bus once and in the database once, and the job must
succeed in its first attempt.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import clickhouse_connect

from gangline.local.client import Client
from gangline_schemas.job import JobState
from support.harnesses.log_watch import PACED, LogWatch, Seen

SHORT = ["python", str(Path(__file__).with_name("short_job.py"))]
SHORT_STEPS = 10
LONG_STEPS = 1_000_000
JOB_S = 300.0
STORED_S = 60.0


@dataclass
class Jobs:
    """Long ones that train all the time, and short ones."""

    watch: LogWatch
    client: Client
    until: Path
    """Once this file is there, the long jobs end with their next step."""
    lost: list[str] = field(default_factory=list)
    """Jobs and steps that were lost, in words; steps that came twice, too."""
    steps: dict[str, int] = field(default_factory=dict)
    """Of each job that ended."""
    _long: list[str] = field(default_factory=list)

    def begin(self, count: int) -> None:
        """Start long jobs; return once all train and have saved."""
        for number in range(count):
            self._long.append(
                self.watch.submit(
                    f"long-{number}", command=PACED,
                    env={"UNTIL": str(self.until), "PAUSE_S": "0.5"},
                    hyperparameters={"steps": LONG_STEPS}, checkpoint={"interval_minutes": 0.05},
                    resources={"gpus": 2, "memory_per_gpu_gb": 0.25},
                )
            )  # fmt: skip
        self._continue(0)

    def short(self, name: str) -> None:
        """One more runs from its submission to its end; the long ones make steps and save."""
        before = len(self.watch.seen)
        self._end(self.watch.submit(name, command=SHORT, hyperparameters={"steps": SHORT_STEPS}))
        self._continue(before)

    def _continue(self, before: int) -> None:
        """Wait for a step and a checkpoint of each long job."""
        for job in self._long:
            for kind in ("worker.step", "checkpoint.committed"):
                try:
                    self.watch.wait_for(partial(_is_of, kind, job), timeout_s=JOB_S, after=before)
                except AssertionError:
                    self.lost.append(f"{job}: no {kind} within {JOB_S:.0f} s")

    def end(self) -> None:
        """End the long ones; then all steps must be in the database, too."""
        self.until.touch()
        for job in self._long:
            self._end(job)
        self.lost += self._missing_rows()

    def _end(self, job: str) -> None:
        try:
            state = self.watch.wait_state(job, *ended(), timeout_s=JOB_S).data.state
        except AssertionError:
            self.lost.append(f"{job}: has not ended after {JOB_S:.0f} s")
            return
        attempts = {seen.data.attempt for seen in self.watch.of("gang.allocated", job)}
        if state is not JobState.SUCCEEDED or attempts != {1}:
            self.lost.append(f"{job}: {state}, attempts {sorted(attempts)}")
        steps = list(self._reported(job))
        self.steps[job] = len(set(steps))
        self.lost += gaps(job, steps)

    def _reported(self, job: str) -> Iterator[int]:
        """The steps of which rank 0 reported the loss."""
        for seen in self.watch.seen:
            if seen.type == "worker.step" and seen.data.run_id == job and seen.data.rank == 0:
                losses = seen.data.metrics.get("loss", ())
                yield from (
                    s for s, x in zip(seen.data.step, losses, strict=False) if x is not None
                )

    def _missing_rows(self) -> list[str]:
        """What the database does not have, or has twice, once the tracker had time to read it."""
        deadline = time.monotonic() + STORED_S
        while True:
            rows = Counter(self._rows())
            found = [
                f"{job}: {rows[job]} of {count} steps are in the database"
                for job, count in self.steps.items()
                if rows[job] != count
            ]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(1.0)

    def _rows(self) -> dict[str, int]:
        host, port = self.client.clickhouse_url.removeprefix("http://").split(":")
        database = clickhouse_connect.get_client(
            host=host, port=int(port), password=self.client.token, database="gangline"
        )
        query = "SELECT run_id, count() FROM steps WHERE name = 'loss' AND rank = 0 GROUP BY run_id"
        return {str(job): int(count) for job, count in database.query(query).result_rows}


def gaps(job: str, steps: Iterable[int]) -> list[str]:
    """What is wrong with a job's steps, in words: each from the first to the last must be once."""
    counts = Counter(steps)
    if not counts:
        return [f"{job}: no step"]
    missing = max(counts) - min(counts) + 1 - len(counts)
    doubled = sum(count - 1 for count in counts.values())
    if min(counts) > 1 or missing or doubled:
        return [f"{job}: begins at step {min(counts)}, {missing} steps missing, {doubled} twice"]
    return []


def _is_of(kind: str, job: str, seen: Seen) -> bool:
    of = seen.data.run_id if seen.type == "worker.step" else getattr(seen.data, "job_id", None)
    return seen.type == kind and of == job


def ended() -> list[JobState]:
    """The states in which a job stays."""
    return [state for state in JobState if state.terminal]
