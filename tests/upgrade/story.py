"""What is done with a mixed platform, and what must hold of it.

1. All parts are of the release before; two jobs train until the end.
2. Forward: part by part to this release, services first, then agents. After each, a short job runs.
3. Alone (`--alone`): each part of the release before with all others of this one, and back.
4. Back: part by part to the release before, in the opposite order.

Each change of a part is a row: its time, and restarts and dead letters that came with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from support.harnesses.log_watch import LogWatch
from upgrade.jobs import Jobs
from upgrade.mixed import BEFORE, THIS, MixedPlatform

ORDER = (
    "quota-0", "scheduler-0", "fault-manager-0", "checkpoint-service-0", "alerts-0", "studies-0",
    "pipelines-0", "registry-0", "tracker-0", "live-view-0", "mlflow-0", "gateway-0", "console-0",
    "node-0", "node-1",
)  # fmt: skip
"""The control plane first, as docs/guides/upgrades.md says."""
LONG_JOBS = 2


@dataclass(frozen=True)
class Change:
    """A part that changed its release, and what was found until the short job after it ended."""

    name: str
    phase: str
    seconds: float
    restarts: int
    """Of all services, without a request."""
    dead_letters: int
    lost: int
    """Jobs, and steps of jobs."""

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not (self.restarts or self.dead_letters or self.lost)


@dataclass
class Verdict:
    """What was found in all."""

    changes: list[Change] = field(default_factory=list)
    jobs: int = 0
    steps: int = 0
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
    jobs: Jobs
    say: Callable[[str], None]
    verdict: Verdict = field(default_factory=Verdict)

    def run(self, *, parts: Sequence[str] = ORDER, alone: bool = False) -> Verdict:
        """All of it."""
        parts = [name for name in parts if name not in self.platform.added]
        self.jobs.begin(LONG_JOBS)
        self._note()
        for name in parts:
            self._change(name, THIS, "forward")
        for name in parts if alone else ():
            self._change(name, BEFORE, "alone")
            self._change(name, THIS, "again", job=False)
        for name in reversed(parts):
            self._change(name, BEFORE, "back")
        self.jobs.end()
        self.watch.assert_sound()
        self._note()
        self.verdict.jobs, self.verdict.steps = len(self.jobs.steps), sum(self.jobs.steps.values())
        return self.verdict

    def _change(self, name: str, release: str, phase: str, *, job: bool = True) -> None:
        before, began = self._found(), time.monotonic()
        self.platform.switch(name, release)
        if job:
            self.jobs.short(f"{name}-{phase}")
        self._note()
        found = [now - then for now, then in zip(self._found(), before, strict=True)]
        change = Change(name, phase, time.monotonic() - began, *found)
        self.verdict.changes.append(change)
        said = "" if change.good else f"{self.verdict}"
        self.say(f"{name:22} {phase:8} {change.seconds:6.1f} s {said}")

    def _found(self) -> tuple[int, int, int]:
        """Restarts, dead letters and losses so far."""
        verdict = self.verdict
        letters = sum(verdict.dead_letters.values())
        return sum(verdict.crashes.values()), letters, len(verdict.lost)

    def _note(self) -> None:
        self.verdict.crashes = self.platform.crashes()
        self.verdict.dead_letters = self.watch.dead_letters()
        self.verdict.lost = list(self.jobs.lost)


def table(verdict: Verdict) -> Iterator[str]:
    """The rows by part: seconds of each phase, then restarts, dead letters and losses in all."""
    phases = list(dict.fromkeys(change.phase for change in verdict.changes))
    columns = "".join(f"{phase:>9}" for phase in phases)
    yield f"{'part':22}{columns}  restarts  dead letters  lost"
    for name in dict.fromkeys(change.name for change in verdict.changes):
        mine = [change for change in verdict.changes if change.name == name]
        times = "".join(
            f"{sum(change.seconds for change in mine if change.phase == phase):7.1f} s"
            for phase in phases
        )
        restarts, letters, lost = (
            sum(getattr(change, what) for change in mine)
            for what in ("restarts", "dead_letters", "lost")
        )
        yield f"{name:22}{times}  {restarts:8}  {letters:12}  {lost:4}"
    yield (
        f"{len(verdict.changes)} changes, {verdict.jobs} jobs, {verdict.steps} steps: "
        f"{sum(verdict.crashes.values())} restarts, {sum(verdict.dead_letters.values())} dead "
        f"letters, {len(verdict.lost)} lost"
    )
    yield from (f"restarted: {name}, {count}" for name, count in verdict.crashes.items())
    yield from (f"dead letters: {name}, {count}" for name, count in verdict.dead_letters.items())
    yield from (f"lost: {text}" for text in verdict.lost)
