"""The decisions of the registry.

- gangline.automation: requests about models, and profiles of data (requests.py).
- gangline.checkpoints: promoted checkpoints, which alone can be registered.
- Effects: versions in MLflow, comparisons of scores and profiles, MLflow's table of aliases
  (effects.py). A promotion is judged when its comparisons are there (promoting.py).
- Ticks judge promotions that waited too long, and the age of data (watching.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import BaseDecider, Decision, EffectDone, Fold, Input, Observed, Tick
from gangline_bus.plan import Plan
from gangline_registry.core import effects, invariants, promoting, requests, watching
from gangline_registry.core.evolve import fold
from gangline_registry.core.model import Watch, model_key
from gangline_registry.core.state import RegistryPlan, RegistryState
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.clocks import lasts
from gangline_schemas.events.checkpoints import (
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPromoted,
)
from gangline_schemas.events.registry import (
    GateSet,
    OfModel,
    ProfileNoted,
    PromotedGone,
    PromotedNoted,
)
from gangline_schemas.models import CheckpointOf


@dataclass(slots=True)
class RegistryDecider(BaseDecider[RegistryState, Watch]):
    """Implements `Decider[RegistryState, Watch]`."""

    name: str = "registry"
    log: Topic = Topic.REGISTRY
    inputs: tuple[Topic, ...] = (Topic.AUTOMATION, Topic.CHECKPOINTS)
    fold: Fold[RegistryState] = fold

    def initial(self) -> RegistryState:
        """Nothing is known."""
        return RegistryState()

    def initial_soft(self) -> Watch:
        """Nothing was looked at."""
        return Watch()

    def decide(
        self, state: RegistryState, soft: Watch, item: Input, now: datetime
    ) -> Sequence[Decision]:
        """The events that follow from one input; [] for old, foreign or known ones."""
        plan: RegistryPlan = Plan(state, soft, now, fold)
        match item:
            case Tick():
                promoting.expire(plan)
                watching.age(plan)
            case EffectDone():
                effects.done(plan, item)
            case Received():
                requests.take(plan, item.envelope)
                _note_checkpoint(plan, item.envelope.data)
            case _:
                pass
        return plan.decisions

    def observe(
        self, state: RegistryState, soft: Watch, observed: Observed, now: datetime
    ) -> Watch:
        """Note the time, and the comparisons that a model asks for after an event about it."""
        match observed:
            case Tick():
                if soft.now is None:
                    effects.note(state, soft, [*state.models])
                    soft.began = soft.looked_at = now
                if soft.began is not None and now < soft.began:
                    soft.began = now  # the clock was put back: what fails now has to wait
                soft.now = now
                if soft.looked_at is None or not lasts(soft.looked_at, now, effects.LOOK_AGAIN):
                    soft.looked_at, soft.round = now, soft.round + 1
            case Decision(event=GateSet() as event):
                effects.note(state, soft, [model_key(event.config.team, event.config.model)])
            case Decision(event=OfModel() as event):
                effects.note(state, soft, [model_key(event.team, event.model)])
            case Decision(event=ProfileNoted() as event):
                watching.note_newest(state, soft, event)
                gated = state.models.items()
                watches = (name for name, one in gated if one.gate.training_data is not None)
                own = f"{event.team}/"
                effects.note_data(state, soft, [name for name in watches if name.startswith(own)])
            case _:
                pass
        effects.note_table(state, soft)
        return soft

    def effects(self, state: RegistryState, soft: Watch) -> Mapping[str, object]:
        """The work in MLflow and with objects, by key."""
        return effects.wanted(state, soft)

    def check(self, state: RegistryState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)


def _note_checkpoint(plan: RegistryPlan, event: Event) -> None:
    match event:
        case CheckpointPromoted(job_id=job_id, step=step):
            one = CheckpointOf(
                job_id=job_id, attempt=event.attempt, step=step, world_size=event.world_size,
                commit_key=event.commit_key,
            )  # fmt: skip
            noted = plan.state.checkpoints.get(f"{job_id}/{step}")
            if noted is None or noted.checkpoint != one:
                plan.add(job_id, PromotedNoted(checkpoint=one))
        case CheckpointDeleted() | CheckpointCorrupted():
            noted = plan.state.checkpoints.get(f"{event.job_id}/{event.step}")
            if noted is not None and noted.checkpoint.attempt == event.attempt:
                plan.add(event.job_id, PromotedGone(job_id=event.job_id, step=event.step))
        case _:
            pass
