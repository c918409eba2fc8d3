"""The decisions of the alerts service.

- gangline.scheduling, gangline.faults: facts about jobs, GPUs and nodes (facts.py). A new state of
  a job notifies those that its spec names.
- gangline.checkpoints: saves are counted, once a minute at most.
- gangline.registry: the data of champions (models.py).
- gangline.progress, gangline.heartbeats: measurements, noted in the soft state (measured.py).
- gangline.admin: silences (silencing.py).
- Ticks judge the rules: an alert is raised once and resolved once (judging.py). Its receivers are
  notified in groups (notifying.py). Deliveries are effects: at least once, tried again later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gangline_alerts.core import facts, invariants, judging, measured, models, notifying, silencing
from gangline_alerts.core.model import Watch
from gangline_alerts.core.policy.routes import Receivers
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.state import AlertPlan, AlertState, fold
from gangline_bus.codec import Received
from gangline_bus.decision import (
    BaseDecider,
    Decision,
    EffectDone,
    Fold,
    Input,
    Observed,
    Recall,
    Tick,
)
from gangline_bus.plan import Plan
from gangline_schemas.catalog import Topic
from gangline_schemas.events.admin import SilenceRequested, UnsilenceRequested
from gangline_schemas.events.alerts import PartitionOffset, SavesCounted, WatchNoted
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointCommitted


@dataclass(slots=True)
class AlertDecider(BaseDecider[AlertState, Watch]):
    """Implements `Decider[AlertState, Watch]`."""

    rules: Rules = field(default_factory=Rules)
    receivers: Receivers = field(default_factory=Receivers)
    timing: Timing = field(default_factory=Timing)
    name: str = "alerts"
    log: Topic = Topic.ALERTS
    inputs: tuple[Topic, ...] = (
        Topic.SCHEDULING, Topic.FAULTS, Topic.CHECKPOINTS, Topic.ADMIN, Topic.REGISTRY,
    )  # fmt: skip
    signals: tuple[Topic, ...] = (Topic.PROGRESS, Topic.HEARTBEATS)
    fold: Fold[AlertState] = fold

    def initial(self) -> AlertState:
        """Nothing is known."""
        return AlertState()

    def initial_soft(self) -> Watch:
        """Nothing was measured."""
        return Watch()

    def decide(
        self, state: AlertState, soft: Watch, item: Input, now: datetime
    ) -> Sequence[Decision]:
        """The events that follow from one input; [] for old, foreign or known ones."""
        plan = Plan(state, soft, now, fold)
        match item:
            case Tick():
                self._tick(plan)
            case EffectDone():
                notifying.done(plan, item, self.timing)
            case Received():
                envelope = item.envelope
                if isinstance(envelope.data, SilenceRequested | UnsilenceRequested):
                    silencing.take(plan, envelope, self.receivers)
                else:
                    facts.take(plan, envelope.data, envelope.time, self.receivers)
                    models.take(plan, envelope.data)
            case _:
                pass
        return plan.decisions

    def observe(self, state: AlertState, soft: Watch, observed: Observed, now: datetime) -> Watch:
        """Note measurements and saves; at a Tick, since when the rules' conditions hold."""
        match observed:
            case Received():
                measured.note(state, soft, observed, now)
            case Tick():
                if soft.now is not None and now < soft.now:
                    measured.begin_again(soft)
                soft.began = soft.began or now
                soft.now = now
                measured.settle(soft, self.timing.settle_s, now)
                measured.forget(state, soft)
                judging.note_spells(state, soft, self.rules, self.timing, now)
            case Decision():
                if isinstance(observed.event, SavesCounted):
                    measured.counted(soft, observed.event)
                elif isinstance(observed.event, WatchNoted):
                    soft.absence = None
        return soft

    def recall(self, state: AlertState) -> Recall:
        """The saves that the log has not counted."""
        types = frozenset({CheckpointCommitted.type, CheckpointAbandoned.type})
        return Recall(Topic.CHECKPOINTS, types, dict(state.counted))

    def effects(self, state: AlertState, soft: Watch) -> Mapping[str, object]:
        """The deliveries that are due, by key."""
        return notifying.wanted(state, soft, self.timing)

    def check(self, state: AlertState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)

    def _tick(self, plan: AlertPlan) -> None:
        self._note_watch(plan)
        self._count_saves(plan)
        silencing.expire(plan, self.receivers)
        judging.judge(plan, self.rules, self.timing, self.receivers)
        notifying.of_groups(plan, self.timing)

    def _note_watch(self, plan: AlertPlan) -> None:
        if plan.soft.absence is not None:
            spans = plan.state.away
            since = max(plan.soft.absence, spans[-1].until) if spans else plan.soft.absence
            plan.add(self.name, WatchNoted(away_since=since))
            return
        last = plan.state.watched_at
        gap_s = None if last is None else (plan.now - last).total_seconds()
        if gap_s is not None and 0 <= gap_s < self.timing.note_s:
            return
        away = gap_s is not None and gap_s >= self.timing.away_s
        plan.add(self.name, WatchNoted(away_since=last if away else None))

    def _count_saves(self, plan: AlertPlan) -> None:
        soft = plan.soft
        if not soft.saved and not soft.unsaved:
            return
        wait = timedelta(seconds=self.timing.count_s)
        if soft.counted_at is not None and plan.now - soft.counted_at < wait:
            return
        counted = tuple(
            PartitionOffset(partition=number, offset=at)
            for number, at in sorted(soft.counted.items())
        )
        plan.add(self.name, SavesCounted(saved=soft.saved, failed=soft.unsaved, counted=counted))
