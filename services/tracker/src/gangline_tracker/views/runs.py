"""Decides the events of gangline.progress and their times. Pure: the time is an argument.

1. A run's speaker is the lowest rank of its newest attempt that reports. A step counts if it is
   above the last one, so records may come twice and late.
2. A run with a new step is due one second after its last event, or at once. `done` counts the
   reports whose progress was given out, so that no clock decides which offsets are committed.
3. A run is stalled if it had no step for `stall_after_ms`, and that is said once. Silence counts
   only while this process listens.
4. A run that is silent for an hour is forgotten, and the longest silent ones if there are too many.
   Its attempt and step stay known, so a late report does not set it back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.limits import METRICS_PER_STEP
from gangline_tracker.views.window import Rates, StepSample, Window

EVERY_MS = 1000
"""Between two events of a run."""
STALL_STEPS = 10
STALL_LEAST_MS = 30_000
STALL_UNKNOWN_MS = 600_000
FORGET_MS = 3_600_000
LEFT_MAX = 100_000
"""Forgotten runs whose attempt and step stay known; the first forgotten go first."""
PAUSE_MS = 5000
"""If `due` was not called for so long, the process stood still: it did not listen."""

RunKey = tuple[str, str]
"""A run and the team that reports it: a writer of steps may name the run of another team."""


def stall_after_ms(step_s: float | None) -> float:
    """How long a run may be silent: 10 steps, at least 30 s; 10 min if its speed is not known."""
    if step_s is None:
        return STALL_UNKNOWN_MS
    return max(STALL_LEAST_MS, STALL_STEPS * step_s * 1000)


@dataclass(slots=True)
class _Run:
    attempt: int
    rank: int
    heard_ms: int
    step: int = -1
    time_ms: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    rates: Rates = field(default_factory=Rates)
    published_ms: int = 0
    stalled: bool = False


class Runs:
    """All runs that are alive. At most `limit` of them, with at most `values` metrics in all.

    `now_ms`, here and below, is Unix time by the clock of this process.
    """

    def __init__(self, now_ms: int, *, limit: int = 10_000, values: int = 500_000) -> None:
        self._runs: OrderedDict[RunKey, _Run] = OrderedDict()  # the longest silent first
        self._left: OrderedDict[RunKey, tuple[int, int]] = OrderedDict()
        self._noted = 0
        self._due: dict[RunKey, int] = {}  # with the reports before its first one not given out
        self._limit = limit
        self._values_limit = values
        self._values = 0
        self._listening_ms = self._asked_ms = now_ms

    def __len__(self) -> int:
        return len(self._runs)

    def restore(self, event: RunProgress, published_ms: int) -> None:
        """Take an event that an earlier process published: steps before it are known."""
        heard_ms = min(published_ms, self._asked_ms)  # the clock may have been set back since
        run = _Run(event.attempt, event.rank, heard_ms, event.step, event.time_ms)
        run.metrics = dict(event.metrics)
        run.rates = Rates(event.step_s, event.tokens_per_s, event.data_wait_share)
        run.published_ms = published_ms
        if event.stalled_since is not None:
            run.stalled = True
            run.heard_ms = min(heard_ms, int(event.stalled_since.timestamp() * 1000))
        self._put((event.run_id, event.team), run)

    def note(self, event: WorkerStep, now_ms: int) -> None:
        """Take one report that came now. Cost: O(its values)."""
        before, self._noted = self._noted, self._noted + 1
        key = (event.run_id, event.team)
        run = self._runs.get(key)
        if run is None:
            attempt, last = self._left.get(key, (event.attempt, -1))
            if (event.attempt, max(event.step)) <= (attempt, last):
                return
            step = last if event.attempt == attempt else -1
            run = _Run(event.attempt, event.rank, now_ms, step)
            self._put(key, run)
        elif event.attempt > run.attempt:
            run = _Run(event.attempt, event.rank, now_ms, published_ms=run.published_ms)
            self._put(key, run)
        elif event.attempt < run.attempt or event.rank > run.rank:
            return
        elif event.rank < run.rank:
            run.rank, run.window = event.rank, Window()
        fresh = [index for index, step in enumerate(event.step) if step > run.step]
        if not fresh:
            return
        values = len(run.metrics)
        _take(run, event, fresh)
        run.heard_ms, run.stalled = now_ms, False
        self._values += len(run.metrics) - values
        self._runs.move_to_end(key)
        self._due.setdefault(key, before)
        self._shed()

    def noted(self) -> int:
        """Reports that were noted so far."""
        return self._noted

    def done(self) -> int:
        """So many reports, from the first on, have no progress that `due` must still give out."""
        return next(iter(self._due.values()), self._noted)

    def deaf(self, now_ms: int) -> None:
        """Nothing could be received until now: the silence of runs up to here does not count."""
        self._listening_ms = now_ms

    def due(self, now_ms: int) -> list[RunProgress]:
        """The events to publish now: of runs that changed, at most one a second and run."""
        if abs(now_ms - self._asked_ms) > PAUSE_MS:
            self.deaf(now_ms)
        if now_ms < self._asked_ms:
            self._set_back(now_ms)
        self._asked_ms = now_ms
        self._forget(now_ms)
        self._find_stalls(now_ms)
        ready = [key for key in self._due if abs(now_ms - self._runs[key].published_ms) >= EVERY_MS]
        for key in ready:
            del self._due[key]
        return [self._event(key, now_ms) for key in ready]

    def _event(self, key: RunKey, now_ms: int) -> RunProgress:
        run = self._runs[key]
        run.published_ms = now_ms
        run.rates = run.window.rates().or_else(run.rates)
        since = datetime.fromtimestamp(run.heard_ms / 1000, tz=UTC) if run.stalled else None
        return RunProgress(
            run_id=key[0],
            team=key[1],
            attempt=run.attempt,
            rank=run.rank,
            step=run.step,
            time_ms=run.time_ms,
            metrics=run.metrics,
            step_s=run.rates.step_s,
            tokens_per_s=run.rates.tokens_per_s,
            data_wait_share=run.rates.data_wait_share,
            stalled_since=since,
        )

    def _set_back(self, now_ms: int) -> None:
        """The clock was set back: nothing was received later than now."""
        self._listening_ms = min(self._listening_ms, now_ms)
        for run in self._runs.values():
            run.heard_ms = min(run.heard_ms, now_ms)

    def _find_stalls(self, now_ms: int) -> None:
        for key, run in self._runs.items():
            silent_ms = now_ms - max(run.heard_ms, self._listening_ms)
            if silent_ms < STALL_LEAST_MS:
                return  # those behind it reported later
            if not run.stalled and silent_ms >= stall_after_ms(run.rates.step_s):
                run.stalled = True
                self._due.setdefault(key, self._noted)

    def _put(self, key: RunKey, run: _Run) -> None:
        self._drop(key)
        self._left.pop(key, None)
        self._runs[key] = run
        self._values += len(run.metrics)
        self._shed()

    def _shed(self) -> None:
        while len(self._runs) > self._limit or (
            self._values > self._values_limit and len(self._runs) > 1
        ):
            self._leave(next(iter(self._runs)))

    def _forget(self, now_ms: int) -> None:
        while self._runs:
            key, run = next(iter(self._runs.items()))
            if now_ms - max(run.heard_ms, self._listening_ms) < FORGET_MS or key in self._due:
                return
            self._leave(key)

    def _leave(self, key: RunKey) -> None:
        """Forget a run, except how far it was."""
        run = self._runs[key]
        self._drop(key)
        self._left[key] = (run.attempt, run.step)
        while len(self._left) > LEFT_MAX:
            self._left.popitem(last=False)

    def _drop(self, key: RunKey) -> None:
        run = self._runs.pop(key, None)
        if run is not None:
            self._values -= len(run.metrics)
            self._due.pop(key, None)


def _take(run: _Run, event: WorkerStep, fresh: Sequence[int]) -> None:
    columns = event.metrics
    for index in fresh:
        if event.step[index] <= run.step:
            continue  # it is there twice
        run.step, run.time_ms = event.step[index], event.time_ms[index]
        run.window.add(
            StepSample(
                run.step,
                run.time_ms,
                _value(columns, "tokens_per_s", index),
                _value(columns, "data_wait_s", index),
                _value(columns, "step_s", index),
            )
        )
    for name, column in columns.items():
        value = next((column[at] for at in reversed(fresh) if column[at] is not None), None)
        if value is not None and (name in run.metrics or len(run.metrics) < METRICS_PER_STEP):
            run.metrics[name] = value


def _value(columns: Mapping[str, Sequence[float | None]], name: str, index: int) -> float | None:
    column = columns.get(name)
    return None if column is None else column[index]
