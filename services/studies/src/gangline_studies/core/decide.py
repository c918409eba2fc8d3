"""The decisions of the studies service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gangline_bus.decision import BaseDecider, Decision, Fold, Input
from gangline_bus.plan import Plan
from gangline_schemas.catalog import Topic
from gangline_studies.core import invariants
from gangline_studies.core.evolve import fold
from gangline_studies.core.state import StudyState


class StudyDecider(BaseDecider[StudyState, None]):
    """Implements `Decider[StudyState, None]`."""

    name = "studies"
    log = Topic.STUDIES
    inputs: tuple[Topic, ...] = (
        Topic.AUTOMATION, Topic.QUOTA, Topic.SCHEDULING, Topic.FAULTS, Topic.CHECKPOINTS,
        Topic.WORKERS,
    )  # fmt: skip
    fold: Fold[StudyState] = fold

    def initial(self) -> StudyState:
        """There are no studies."""
        return StudyState()

    def decide(
        self,
        state: StudyState,
        soft: None,
        item: Input,  # noqa: ARG002
        now: datetime,
    ) -> Sequence[Decision]:
        """The events that follow from one input; [] for old, foreign or known ones."""
        plan: Plan[StudyState, None] = Plan(state, soft, now, fold)
        return plan.decisions

    def check(self, state: StudyState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)
