"""A study of 10,000 trials: its fold, its memory, its views, and suggestions.

- `fold_10k_s`: the fold of a study's log with 10,000 trials, decoding included.
- `state_10k_mb`: memory of the folded state. `importance_10k_ms`, `parallel_10k_ms`: two views.
- `decision_10k_ms`: the longest decision of that study.
- `ask_1k_ms`: a suggestion of TPE after 1,000 results with 16 running; `ask_10k_ms`: after 10,000.

These times are CPU time of the thread, which a busy machine changes less.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from harness import Context, Result

from gangline_bus.decision import Decision
from gangline_gateway import study_views
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.state import Phase, Trial
from gangline_studies.core.suggesting import Ask, Suggestion
from gangline_studies.service.sampler import Sampler
from support.harnesses.study_world import Fate, StudyWorld

GANGS = 16


class Timed(StudyDecider):
    """Notes how long each decision takes."""

    def __init__(self) -> None:
        self.took: list[float] = []

    def decide(self, *args: Any) -> Any:
        began = time.thread_time()
        found = super().decide(*args)
        self.took.append(time.thread_time() - began)
        return found


def large(context: Context, trials: int) -> list[Result]:
    """A study of many trials: its fold, and its decisions."""
    source = random.Random(1)
    names = [f"x{at}" for at in range(10)]

    def given(_key: str, ask: object) -> object:
        assert isinstance(ask, Ask)
        point: Parameters = {name: source.uniform(0, 1) for name in names}
        return Suggestion(ask.study_id, ask.number, point, "random", ask.results)

    def program(parameters: Parameters) -> Fate:
        base = sum(float(value or 0) for value in parameters.values())
        return Fate([base + 1 / unit for unit in range(1, 28)])

    spec = StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": {"metric": "loss"},
        "space": {name: {"type": "float", "low": 0, "high": 1} for name in names},
        "stopping": {"kind": "asha", "min_steps": 1}, "sampler": "random",
        "limits": {"trials": trials, "parallel": GANGS},
        "job": {"run": "x", "resources": {"gpus": 1}},
    })  # fmt: skip
    decider = Timed()
    world = StudyWorld(program, gangs=GANGS, sampler=given, checked=False, decider=decider)
    gc.collect()
    gc.freeze()
    gc.disable()  # the loop settles the collector too
    world.submit("s", spec)
    world.run()
    raw = [(type(each.event), each.event.encode(), at) for each, at in world.log]
    began = time.thread_time()
    state = decider.initial()
    for kind, content, at in raw:
        state = decider.evolve(state, Decision("s", kind.decode(content)), at)
    took = time.thread_time() - began
    gc.enable()
    assert len(state.over["s"]) == trials
    gc.collect()
    tracemalloc.start()
    again = decider.initial()
    for kind, content, at in raw:
        again = decider.evolve(again, Decision("s", kind.decode(content)), at)
    held, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    study, over = state.studies["s"], state.over["s"]
    views: dict[str, Callable[[], object]] = {
        "importance": lambda: study_views.importance(study, over, spec.objective[0]),
        "parallel": lambda: study_views.parallel("s", study, over),
    }
    return [
        context.result("state_10k_mb", held / 1e6, "MB"),
        *(
            context.result(f"{name}_10k_ms", _time(view) * 1000, "ms")
            for name, view in views.items()
        ),
        context.result("fold_10k_s", took, "s"),
        context.result("fold_10k_events", len(raw), "events"),
        context.result("decision_10k_ms", max(decider.took) * 1000, "ms"),
    ]


def _time(view: Callable[[], object]) -> float:
    began = time.thread_time()
    view()
    return time.thread_time() - began


def asking(results: int) -> float:
    """The time of a suggestion of TPE, in ms, with everything folded before."""
    names = [f"x{at}" for at in range(10)]
    spec = StudySpec.model_validate({
        "name": "s", "team": "nlp", "objective": {"metric": "loss"}, "sampler": "tpe",
        "space": {name: {"type": "float", "low": 0, "high": 1} for name in names},
        "job": {"run": "x", "resources": {"gpus": 1}},
    })  # fmt: skip
    source, now = random.Random(2), datetime.now(UTC)

    def trial(number: int, phase: Phase) -> Trial:
        point: Parameters = {name: source.uniform(0, 1) for name in names}
        values: dict[str, float | None] = {"loss": source.random()}
        return Trial(number, point, "tpe", 0, now, phase=phase, values=values)

    over = tuple(trial(number, Phase.COMPLETED) for number in range(results))
    live = tuple(trial(results + each, Phase.RUNNING) for each in range(GANGS))
    sampler = Sampler()
    ask: Callable[[int], Ask] = lambda number: Ask("s", spec, 1, number, results, over, live, 0)  # noqa: E731
    sampler("", ask(results + GANGS))
    began = time.thread_time()
    for number in range(5):
        sampler("", ask(results + GANGS + number))
    return (time.thread_time() - began) / 5 * 1000


def run(context: Context) -> list[Result]:
    """All of it; with --quick 1,000 trials."""
    trials = 1000 if context.quick else 10_000
    return [
        *large(context, trials),
        context.result("ask_1k_ms", asking(1000), "ms"),
        context.result("ask_10k_ms", asking(trials), "ms"),
    ]
