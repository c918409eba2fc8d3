"""A gang that runs in the simulation: its progress, and what stopping it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gangline_simulator.trace import TraceJob

SecondsOf = Callable[[TraceJob], float]


def nothing(job: TraceJob) -> float:  # noqa: ARG001 - the others' shape
    """It costs nothing."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of stopping a gang and starting it again, in seconds of that gang.

    `checkpoint_s`: between the request to stop and the end of its ranks. `restart_s`: added to
    what it has left. `end_lag_s`: how much later than its work ends its ranks are seen to end (a
    simulator with a clock of whole seconds may look once more). `each_moment_s`: lost by each
    running gang at each moment at which anything happens (Muri's rule); None: nothing is.
    `save_every_s`: a gang that runs while others wait commits a checkpoint at the first tick after
    so long; None: it never does, so that all it did counts as lost when a stop is weighed.
    """

    checkpoint_s: SecondsOf = nothing
    restart_s: SecondsOf = nothing
    end_lag_s: float = 0.0
    each_moment_s: SecondsOf | None = None
    save_every_s: float | None = None


@dataclass(slots=True)
class Running:
    """One attempt. `work_s` is what was left when it started or was last interrupted."""

    job: TraceJob
    attempt: int
    ranks: tuple[tuple[int, str], ...]
    since_s: float
    work_s: float
    costs: Costs
    stopped_s: float | None = None
    planned: int = 0
    lost_s: float = 0.0
    saved_s: float = 0.0

    @property
    def end_s(self) -> float:
        """When its ranks end: with their work, or stopped before that."""
        finish_s = self.since_s + self.work_s + self.costs.end_lag_s
        if self.stopped_s is None:
            return finish_s
        return min(finish_s, self.stopped_s + self.costs.checkpoint_s(self.job))

    @property
    def stops(self) -> bool:
        """Whether it ends because it was stopped."""
        finish_s = self.since_s + self.work_s + self.costs.end_lag_s
        return self.stopped_s is not None and self.end_s < finish_s

    @property
    def restart_s(self) -> float:
        """The time that its next attempt runs in addition."""
        return self.costs.restart_s(self.job)

    def left_s(self, now_s: float) -> float:
        """The time that it has left to run."""
        until_s = now_s if self.stopped_s is None else self.stopped_s
        return max(0.0, self.work_s - (until_s - self.since_s))

    def stop(self, now_s: float) -> None:
        """It was asked to stop; the first time counts."""
        if self.stopped_s is None:
            self.stopped_s = now_s

    def interrupt(self, now_s: float) -> None:
        """It lost `each_moment_s` of what it did since the last moment."""
        cost_s = self.costs.each_moment_s(self.job) if self.costs.each_moment_s else 0.0
        done_s = max(0.0, now_s - self.since_s - cost_s)
        self.lost_s += now_s - self.since_s - done_s
        self.work_s = self.work_s - done_s
        self.since_s = now_s
