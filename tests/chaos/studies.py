"""kill -9 of the processes that a study passes, at random moments while its trials run.

The kills are spread evenly over the study: each comes a random time after so many trials have
ended. Afterwards the study's log is read from its beginning. Each trial must be there once, with
one end and the parameters that it was proposed with; what it reported is computed from these. The
rungs and the best trial of the fold are those that the reports give.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.platforms import BreakablePlatform
from chaos.quick_trial import STEPS, score
from gangline.sdk import connect
from gangline_bus.decision import Decision
from gangline_schemas.catalog import Topic
from gangline_schemas.study_file import Asha, StudySpec
from gangline_studies.core.decide import StudyDecider
from gangline_studies.core.policy import rungs
from gangline_studies.core.snapshot import fingerprint
from gangline_studies.core.state import Ranked, StudyState
from support.harnesses.log_watch import LogWatch

VICTIMS: Mapping[str, tuple[str, ...]] = {
    "studies": ("studies-0",),
    "broker": ("kafka",),
    "agents": ("node-0", "node-1", "node-2"),
    "scheduler": ("scheduler-0",),
    "quota": ("quota-0",),
}
TRIALS_PER_KILL = 2
LONGEST_S = 1.0
"""A kill comes at a random time up to so long after the trials before it ended."""
PROGRESS_S = 600.0
ENDS = ("trial.completed", "trial.pruned", "trial.failed")
STUDY: dict[str, Any] = {
    "name": "kills",
    "team": "default",
    "objective": {"metric": "score"},
    "space": {"x": {"type": "float", "low": 0, "high": 1}},
    "sampler": "tpe",
    "seed": 11,
    "stopping": {"kind": "asha", "min_steps": 1, "max_steps": STEPS},
    "job": {
        "command": ["python", str(Path(__file__).with_name("quick_trial.py"))],
        "resources": {"gpus": 0, "cpus": 0.25, "memory_gb": 0.25},
        "restart": {"max": 1000},
        "stop_grace_seconds": 5,
    },
}
Tell = Callable[[str], None]


@dataclass
class Found:
    """What the log of a study holds after kills."""

    kills: int = 0
    trials: int = 0
    withdrawn: int = 0
    restarts: int = 0
    lost: int = 0
    """Trials that the limits allow and that were never proposed, or have no end."""
    doubled: int = 0
    """Proposals, jobs, ends and measurements of which there are two."""
    changed: int = 0
    """Jobs and reports with other parameters than those of their proposal."""
    failed: int = 0
    replayed: list[str] = field(default_factory=list)
    """Where the fold of the log differs from what the reports give."""
    back_s: dict[str, list[float]] = field(default_factory=dict)
    """By victim, from each kill to the study's next event."""

    @property
    def wrong(self) -> bool:
        return bool(self.lost or self.doubled or self.changed or self.failed or self.replayed)

    def rows(self) -> Iterator[str]:
        """The table."""
        for victim, held in self.back_s.items():
            middle, longest = statistics.median(held), max(held)
            later = f"next event {middle:.1f} s later, {longest:.1f} s at most"
            yield f"{victim:10} {len(held):3} kills; {later}"
        yield (
            f"{self.trials} trials, {self.withdrawn} more withdrawn, {self.restarts} restarts: "
            f"{self.lost} lost, {self.doubled} doubled, {self.changed} changed, "
            f"{self.failed} failed; {'; '.join(self.replayed) or 'rungs and best as reported'}"
        )


class _Progress:
    """How far a study is, read from its log as it grows."""

    def __init__(self, watch: LogWatch) -> None:
        self._watch, self._at = watch, 0
        self.events = self.ended = 0
        self.over = False

    def look(self) -> None:
        self._watch.poll(0.05)
        for seen in self._watch.seen[self._at :]:
            self.events += seen.topic is Topic.STUDIES
            self.ended += seen.type in ENDS
            self.over |= seen.type == "study.ended"
        self._at = len(self._watch.seen)

    def wait(self, ended: int = 0, events: int = 0) -> None:
        """Look until so many trials have ended and the log has so many events, or all is over."""
        until = time.monotonic() + PROGRESS_S
        while (self.ended < ended or self.events < events) and not self.over:
            if time.monotonic() > until:
                last = [s.data for s in self._watch.seen if s.topic is Topic.STUDIES][-20:]
                tail = "\n".join(f"{event!r}"[:200] for event in last)
                raise AssertionError(f"no progress in {PROGRESS_S:.0f} s; the last events:\n{tail}")
            self.look()


def kill_during_study(
    platform: BreakablePlatform, watch: LogWatch, kills: int, seed: int, tell: Tell
) -> Found:
    """Run a study of two trials for each kill; what its log holds."""
    drawn, trials = random.Random(seed), TRIALS_PER_KILL * kills
    order = [[*VICTIMS][at % len(VICTIMS)] for at in range(kills)]
    drawn.shuffle(order)
    limits = {"trials": trials, "parallel": 6, "ahead": 2, "failed": trials}
    with connect(platform.client.url, platform.client.token) as gateway:
        study_id = gateway.submit_study({**STUDY, "limits": limits}).study_id
    progress, found = _Progress(watch), Found(trials=trials)
    for number, victim in enumerate(order):
        progress.wait(ended=number * TRIALS_PER_KILL)
        time.sleep(drawn.uniform(0, LONGEST_S))
        progress.look()
        if progress.over:
            break  # the rows have fewer kills
        before, began = progress.events, time.monotonic()
        _kill(platform, drawn.choice(VICTIMS[victim]))
        progress.wait(events=before + 1)
        found.back_s.setdefault(victim, []).append(time.monotonic() - began)
        found.kills += 1
        if (number + 1) % 10 == 0:
            tell(f"{number + 1} kills, {progress.ended} of {trials} trials have ended")
    progress.wait(ended=sys.maxsize)
    watch.settle()
    events = [s for s in watch.seen if s.topic is Topic.STUDIES and s.data.study_id == study_id]
    _check(found, [s.data for s in events])
    found.restarts = sum(
        s.data.attempt > 1 for s in watch.of("gang.allocated") if study_id in s.data.job_id
    )
    log = [(s.data, s.envelope.time) for s in watch.seen if s.topic is Topic.STUDIES]
    found.replayed = _replay(study_id, log)
    with connect(platform.client.url, platform.client.token) as gateway:
        best, last = gateway.study(study_id).best, events[-1].data.best
    if best is None or last is None or (best.number, best.value) != (last.number, last.value):
        found.replayed.append(f"the gateway names {best}, the log {last}")
    return found


def _kill(platform: BreakablePlatform, name: str) -> None:
    """Kill a process, once it runs."""
    platform.platform.supervisor.wait_ready(PROGRESS_S, [name])
    os.kill(platform.pid(name), signal.SIGKILL)


def _check(found: Found, events: Sequence[Any]) -> None:
    """Count what is not there once, or not as it was proposed."""
    of: dict[str, list[Any]] = {}
    for event in events:
        of.setdefault(event.type, []).append(event)
    proposed = {event.number: event.parameters for event in of["trial.proposed"]}
    withdrawn = {event.number for event in of.get("trial.withdrawn", [])}
    found.withdrawn = len(withdrawn)
    ends = [event.number for kind in (*ENDS, "trial.withdrawn") for event in of.get(kind, [])]
    found.lost = found.trials - len(proposed.keys() - withdrawn) + len(proposed.keys() - {*ends})
    found.failed = len(of.get("trial.failed", []))
    once = [
        Counter(event.number for event in of["trial.proposed"]),
        Counter(event.job_id for event in of["trial.job.requested"]),
        Counter(ends),
        Counter((event.number, event.step) for event in of["trial.measured"]),
    ]
    found.doubled = sum(count - 1 for counted in once for count in counted.values())
    found.changed = sum(
        event.spec.hyperparameters["x"] != proposed[event.number]["x"]
        for event in of["trial.job.requested"]
    ) + sum(
        event.values["score"] != score(proposed[event.number]["x"], event.step)
        for event in of["trial.measured"]
    )


def _replay(study_id: str, log: Sequence[tuple[Any, Any]]) -> list[str]:
    """Fold the log from its beginning, twice; where rungs and best are not what reports give."""
    problems, decider = [], StudyDecider()
    ranks: dict[int, list[Ranked]] = {}
    completed: list[Ranked] = []
    states: list[StudyState] = [decider.initial(), decider.initial()]
    for event, at in log:
        mine = event.study_id == study_id
        if mine and event.type == "trial.measured":
            spec = states[0].studies[study_id].spec
            rung = states[0].trials[study_id, event.number].rung
            reached = _reached(spec, ranks, rung, event)
            if reached != event.rungs:
                problems.append(f"trial {event.number} at {event.step}: {event.rungs}, {reached}")
        if mine and event.type == "trial.completed":
            completed.append((event.values["score"], event.number))
        if mine and event.type == "study.ended":
            held = {rung: list(values) for (_, _, rung), values in states[0].rungs.items()}
            if held != {rung: sorted(values) for rung, values in ranks.items()}:
                problems.append("the rungs differ")
            best = event.best and (event.best.value, event.best.number)
            if best != min(completed):
                problems.append(f"the best is {min(completed)}, and {best} was named")
        states = [decider.evolve(state, Decision(study_id, event), at) for state in states]
    if fingerprint(states[0]) != fingerprint(states[1]):
        problems.append("two folds differ")
    return problems


def _reached(
    spec: StudySpec, ranks: dict[int, list[Ranked]], rung: int, event: Any
) -> tuple[int, ...]:
    """The rungs that a report reaches, decided again."""
    assert isinstance(spec.stopping, Asha)
    ranked = (event.values["score"], event.number)
    held = {at: sorted(values) for at, values in ranks.items()}
    reached, _passes = rungs.climb(
        spec.stopping, lambda at: held.get(at, []), 0, rung, event.step, ranked
    )
    for at in reached:
        ranks.setdefault(at, []).append(ranked)
    return reached
