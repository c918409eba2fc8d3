"""Rolling rates of runs, from their steps. Pure: times come with the records."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gangline_schemas.events.steps import WorkerStep

MAX_SAMPLES = 1024
LOSS, TOKENS = "loss", "tokens_per_s"


@dataclass(frozen=True, slots=True)
class Sample:
    """One step of the rank that speaks for its run."""

    step: int
    time_ms: int
    loss: float | None
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run as it is now. Rates are means over the window; None: not known (yet)."""

    run_id: str
    team: str
    attempt: int
    step: int
    time_ms: int
    steps_per_s: float | None
    tokens_per_s: float | None
    loss: float | None
    mean_loss: float | None


@dataclass(slots=True)
class _Run:
    team: str
    attempt: int
    rank: int
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))


class LiveRuns:
    """The newest attempt of each run, as its lowest reporting rank reports it.

    Records may come twice and late: a step that is not above the last one changes nothing. At most
    `limit` runs are remembered; those silent for longest are forgotten.
    """

    def __init__(self, window_s: float, limit: int) -> None:
        self._window_ms = int(window_s * 1000)
        self._limit = limit
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def note(self, event: WorkerStep) -> None:
        """Take one record."""
        run = self._runs.get(event.run_id)
        if run is None or event.attempt > run.attempt:
            run = self._runs[event.run_id] = _Run(event.team, event.attempt, event.rank)
        elif event.attempt < run.attempt or event.rank > run.rank:
            return
        elif event.rank < run.rank:
            run.rank = event.rank
            run.samples.clear()
        self._runs.move_to_end(event.run_id)
        loss, tokens = event.metrics.get(LOSS), event.metrics.get(TOKENS)
        for index, step in enumerate(event.step):
            if not run.samples or step > run.samples[-1].step:
                run.samples.append(
                    Sample(
                        step,
                        event.time_ms[index],
                        loss[index] if loss else None,
                        tokens[index] if tokens else None,
                    )
                )
        while len(self._runs) > self._limit:
            self._runs.popitem(last=False)

    def current(self) -> list[LiveRun]:
        """All runs, the one that reported last at the end."""
        return [self._view(run_id, run) for run_id, run in self._runs.items() if run.samples]

    def _view(self, run_id: str, run: _Run) -> LiveRun:
        last = run.samples[-1]
        window = [s for s in run.samples if s.time_ms >= last.time_ms - self._window_ms]
        first = window[0]
        elapsed_ms = last.time_ms - first.time_ms
        losses = [s.loss for s in window if s.loss is not None]
        tokens = [s.tokens_per_s for s in window if s.tokens_per_s is not None]
        return LiveRun(
            run_id=run_id,
            team=run.team,
            attempt=run.attempt,
            step=last.step,
            time_ms=last.time_ms,
            steps_per_s=(last.step - first.step) * 1000 / elapsed_ms if elapsed_ms > 0 else None,
            tokens_per_s=sum(tokens) / len(tokens) if tokens else None,
            loss=last.loss,
            mean_loss=sum(losses) / len(losses) if losses else None,
        )
