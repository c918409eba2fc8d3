"""What is done with a mixed platform, and what must hold of it.

1. All parts are of the release before; two jobs train until the end.
2. Forward: part by part to this release, services first, then agents. After each, a short job runs.
3. Back, in the opposite order, in the same way.
4. Alone (`--alone`): each part of the release before with all others of this one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gangline_bus.ports import TopicPartition
from gangline_schemas.job import JobState
from support.harnesses.log_watch import PACED, LogWatch
from upgrade.mixed import MixedPlatform

BEFORE, THIS = "before", "this"
ORDER = (
    "quota-0", "scheduler-0", "fault-manager-0", "checkpoint-service-0", "alerts-0", "studies-0",
    "pipelines-0", "registry-0", "tracker-0", "live-view-0", "mlflow-0", "gateway-0", "console-0",
    "node-0", "node-1",
)  # fmt: skip
"""The control plane first, as docs/guides/upgrades.md says."""
LONG_STEPS = 1_000_000
JOB_S = 300.0


@dataclass
class Verdict:
    """What was found. All but `switches` and `jobs` must be empty."""

    switches: int = 0
    jobs: int = 0
    crashes: dict[str, int] = field(default_factory=dict)
    dead_letters: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was lost."""
        return not (self.crashes or self.dead_letters or self.lost)


@dataclass
class Story:
    """One run over a platform that is up with the release before."""

    platform: MixedPlatform
    watch: LogWatch
    until: Path
    """Once this file is there, the long jobs end with their next step."""
    say: Callable[[str], None]
    verdict: Verdict = field(default_factory=Verdict)

    def run(self, *, parts: Sequence[str] = ORDER, alone: bool = False) -> Verdict:
        """All of it."""
        long = [self._long(f"long-{number}") for number in range(2)]
        for name in parts:
            self._switch(name, THIS)
        if alone:
            for name in parts:
                self._switch(name, BEFORE)
                self._switch(name, THIS, job=False)
        for name in reversed(parts):
            self._switch(name, BEFORE)
        self.until.touch()
        for job in long:
            self._end(job)
        self.watch.assert_sound()
        self.verdict.crashes = self.platform.crashes()
        self.verdict.dead_letters = dict(self._dead_letters())
        return self.verdict

    def _long(self, name: str) -> str:
        job = self.watch.submit(
            name, command=PACED, env={"UNTIL": str(self.until), "PAUSE_S": "0.2"},
            hyperparameters={"steps": LONG_STEPS}, checkpoint={"interval_minutes": 0.1},
            resources={"gpus": 2, "memory_per_gpu_gb": 0.25},
        )  # fmt: skip
        self.watch.wait_for(
            lambda seen: (
                seen.type == "worker.step" and seen.data.run_id == job and seen.data.step[-1] > 2
            ),
            timeout_s=JOB_S,
        )
        return job

    def _switch(self, name: str, release: str, *, job: bool = True) -> None:
        began = time.monotonic()
        self.platform.switch(name, release)
        self.verdict.switches += 1
        if job:
            self._short(f"{name}-{release}")
        self.say(f"{name:22} {release:7} {time.monotonic() - began:6.1f} s")

    def _short(self, name: str) -> None:
        self._end(self.watch.submit(name, hyperparameters={"steps": 10}))

    def _end(self, job: str) -> None:
        """Wait for its end; a job that does not end is lost."""
        try:
            state = self.watch.wait_state(job, *ended(), timeout_s=JOB_S).data.state
        except AssertionError:
            self.verdict.lost.append(f"{job}: has not ended after {JOB_S:.0f} s")
        else:
            self._check(job, state)

    def _check(self, job: str, state: JobState) -> None:
        """The job succeeded in one attempt, and the loss of each step was reported once."""
        self.verdict.jobs += 1
        attempts = {seen.data.attempt for seen in self.watch.of("gang.allocated", job)}
        if state is not JobState.SUCCEEDED or attempts != {1}:
            self.verdict.lost.append(f"{job}: {state}, attempts {sorted(attempts)}")
        reports = [
            seen.data
            for seen in self.watch.seen
            if seen.type == "worker.step" and seen.data.run_id == job and seen.data.rank == 0
        ]
        steps = [
            step
            for report in reports
            for step, loss in zip(report.step, report.metrics.get("loss", ()), strict=False)
            if loss is not None
        ]
        missing = set(range(min(steps, default=0), max(steps, default=0) + 1)) - set(steps)
        if not steps or missing or len(steps) != len(set(steps)):
            self.verdict.lost.append(
                f"{job}: {len(missing)} steps missing, {len(steps) - len(set(steps))} twice"
            )

    def _dead_letters(self) -> Iterator[tuple[str, int]]:
        bus = self.watch.bus
        for topic in self.watch.names.settings():
            if topic.name.endswith(".dlq"):
                places = [TopicPartition(topic.name, index) for index in range(topic.partitions)]
                count = sum(bus.end_offsets(places).values())
                if count:
                    yield topic.name, count


def ended() -> list[JobState]:
    """The states in which a job stays."""
    return [state for state in JobState if state.terminal]
