"""The objectives of trials, as programs log them to MLflow: each becomes a `trial.logged`.

Only points of runs of a trial's job count; the id of a run names its job. Of a call, the newest
step counts. Points beyond `PointRate` are dropped: a study decides by evaluations, not by steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gangline_schemas.base import Event
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.events.scheduling import GangAllocated, JobQueued, JobStateChanged
from gangline_schemas.events.trials import TrialLogged
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

    def follow(self, event: Event) -> None:
        """Take a decision of the scheduler; the same one again changes nothing."""
        if isinstance(event, JobQueued) and event.spec.trial is not None:
            metrics = frozenset(event.spec.trial.metrics)
            with self._lock:
                family = family_of(event.job_id)
                if family not in self._held:
                    self._held[family] = _Held(KnownTrial(event.job_id, metrics))
        elif isinstance(event, GangAllocated) and event.spec.trial is not None:
            metrics = frozenset(event.spec.trial.metrics)
            with self._lock:
                held = self._held.get(family_of(event.job_id))
                if held is not None and held.trial.attempt < event.attempt:
                    held.trial = KnownTrial(event.job_id, metrics, event.attempt)
        elif isinstance(event, JobStateChanged) and event.state.terminal:
            with self._lock:
                self._held.pop(family_of(event.job_id), None)

    def reported(self, logged: MetricLogged) -> TrialLogged | None:
        """The event of points that are logged; None: they decide nothing, or come too fast."""
        with self._lock:
            held = self._held.get(logged.run_id[:FAMILY_CHARS])
            if held is None or held.trial.attempt == 0:
                return None
            trial = held.trial
            found: dict[int, dict[str, float | None]] = {}
            for name, step, value in zip(logged.name, logged.step, logged.value, strict=True):
                if name in trial.metrics and 0 <= step <= INT53_MAX:
                    finite = value is not None and abs(value) <= METRIC_MAX
                    found.setdefault(step, {})[name] = value if finite else None
            if not found or not held.rate.take(self._clock()):
                return None
        step = max(found)
        return TrialLogged(
            job_id=trial.job_id, attempt=trial.attempt, step=step, values=found[step]
        )
