"""The decisions of the studies service.

- gangline.automation: studies are created, refused and stopped (requests.py).
- gangline.scheduling, gangline.faults, gangline.quota: the jobs of trials start and end
  (trial_jobs.py). Only a job's final state counts: not a restart, preemption or hang.
- gangline.checkpoints: from which checkpoint a trial can be continued.
- gangline.workers: what trials report; a trial stops, pauses or continues at a rung (measuring.py).
- After each of these, and at Ticks, the study advances (advance.py): it ends, promotes a paused
  trial, or withdraws one that waits while results came.
- A suggestion is an effect: its result becomes `trial.proposed`, and is never asked for again
  (suggesting.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import BaseDecider, Decision, EffectDone, Fold, Input, Tick
from gangline_bus.plan import Plan
from gangline_schemas.catalog import Topic
from gangline_schemas.events.automation import StudyRequest, StudyStopRequest
from gangline_studies.core import advance, invariants, requests, suggesting, trial_jobs
from gangline_studies.core.evolve import fold
from gangline_studies.core.state import StudyState

MOST_DECISIONS = 2000
"""With so many decisions of one Tick, the other studies wait for the next one."""


class StudyDecider(BaseDecider[StudyState, None]):
    """Implements `Decider[StudyState, None]`."""

    name = "studies"
    log = Topic.STUDIES
    inputs: tuple[Topic, ...] = (
        Topic.AUTOMATION, Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS, Topic.CHECKPOINTS,
        Topic.WORKERS, Topic.TRIALS, Topic.PIPELINES,
    )  # fmt: skip
    fold: Fold[StudyState] = fold

    def initial(self) -> StudyState:
        """There are no studies."""
        return StudyState()

    def decide(
        self, state: StudyState, soft: None, item: Input, now: datetime
    ) -> Sequence[Decision]:
        """The events that follow from one input; [] for old, foreign or known ones."""
        plan: Plan[StudyState, None] = Plan(state, soft, now, fold)
        match item:
            case Tick():
                for study_id in [*state.active]:
                    if len(plan.decisions) >= MOST_DECISIONS:
                        break
                    trial_jobs.settle(plan, study_id)
                    advance.advance(plan, study_id)
            case EffectDone(result=suggesting.Suggestion() | suggesting.NoSuggestion() as answer):
                suggesting.take(plan, answer)
                advance.advance(plan, answer.study_id)
            case Received(envelope=envelope):
                match envelope.data:
                    case StudyRequest() | StudyStopRequest():
                        about = requests.take(plan, envelope)
                    case event:
                        about = trial_jobs.take(plan, event, envelope.time)
                if about is not None:
                    advance.advance(plan, about)
            case _:
                pass
        return plan.decisions

    def effects(self, state: StudyState, soft: None) -> Mapping[str, object]:  # noqa: ARG002
        """The suggestions that are wanted, by key."""
        return suggesting.wanted(state)

    def check(self, state: StudyState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)
