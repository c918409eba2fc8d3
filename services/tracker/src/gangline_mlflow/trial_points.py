"""The objectives of trials, as programs log them to MLflow: each becomes a `trial.logged`.

Only points of runs of a trial's job count; the id of a run names its job. Of a call, the newest
step counts. A study decides by evaluations, not by steps: of the points beyond `PointRate`, and of
those before the allocation is known, only the last one is published, later. When the job has
ended, `trial.logs.ended` follows it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gangline_schemas.base import Event
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.events.scheduling import GangAllocated, JobQueued, JobStateChanged
from gangline_schemas.events.trials import TrialLogged, TrialLogsEnded
from gangline_schemas.limits import INT53_MAX, METRIC_MAX
from gangline_schemas.mlflow_workspace import FAMILY_CHARS, family_of
from gangline_schemas.trial_rate import PointRate


@dataclass(frozen=True, slots=True)
class KnownTrial:
    """A trial whose job has not ended, and the metrics that decide."""

    job_id: str
    metrics: frozenset[str]
    attempt: int = 0


@dataclass(slots=True)
class _Held:
    trial: KnownTrial
    rate: PointRate = field(default_factory=PointRate)
    waits: tuple[int, dict[str, float | None]] | None = None
    """The step and the values that were not published."""

    def take(self) -> list[TrialLogged]:
        """The event of what waits."""
        waits, self.waits = self.waits, None
        trial = self.trial
        if waits is None or not trial.attempt:
            return []
        step, values = waits
        return [TrialLogged(job_id=trial.job_id, attempt=trial.attempt, step=step, values=values)]


class TrialPoints:
    """The trials whose jobs have not ended. May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}

    def load(self, trials: Iterable[KnownTrial]) -> None:
        """Take those that an earlier process knew."""
        with self._lock:
            for trial in trials:
                self._held[family_of(trial.job_id)] = _Held(trial)

    def follow(self, event: Event) -> list[TrialLogged | TrialLogsEnded]:
        """Take a decision of the scheduler; what is to be published then.

        The same decision again gives no more than an end again.
        """
        if not isinstance(event, JobQueued | GangAllocated | JobStateChanged):
            return []
        family = family_of(event.job_id)
        with self._lock:
            held = self._held.get(family)
            match event:
                case JobQueued(spec=spec) if spec.trial is not None and held is None:
                    metrics = frozenset(spec.trial.metrics)
                    self._held[family] = _Held(KnownTrial(event.job_id, metrics))
                case GangAllocated(attempt=attempt) if held and held.trial.attempt < attempt:
                    if held.trial.attempt:  # the next attempt repeats steps
                        held.waits = None
                    held.trial = replace(held.trial, attempt=attempt)
                    return [*held.take()]
                case JobStateChanged(state=state) if held and state.terminal:
                    del self._held[family]
                    return [*held.take(), TrialLogsEnded(job_id=event.job_id)]
                case _:
                    pass
        return []

    def reported(self, logged: MetricLogged) -> TrialLogged | None:
        """The event of points that are logged; None: they decide nothing, or wait."""
        with self._lock:
            held = self._held.get(logged.run_id[:FAMILY_CHARS])
            if held is None:
                return None
            found: dict[int, dict[str, float | None]] = {}
            for name, step, value in zip(logged.name, logged.step, logged.value, strict=True):
                if name in held.trial.metrics and 0 <= step <= INT53_MAX:
                    finite = value is not None and abs(value) <= METRIC_MAX
                    found.setdefault(step, {})[name] = value if finite else None
            if not found:
                return None
            step = max(found)
            held.waits = step, found[step]
            if not held.trial.attempt or not held.rate.take(self._clock()):
                return None
            return held.take()[0]
