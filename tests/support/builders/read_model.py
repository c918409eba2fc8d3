"""The gateway's read model, fed event by event as its tail does."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Self

from gangline_bus.decision import Decision
from gangline_gateway.followed import Copies
from gangline_gateway.live import ENDED_KEPT, Live
from gangline_gateway.live_view import LiveView
from gangline_quota.core.decide import Quota
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.state import fork
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)


class ReadModel:
    """The gateway's own facts beside the states of scheduler and quota.

    Events of these two logs must follow from each other, as the deciders write them.
    """

    def __init__(self, ended_kept: int = ENDED_KEPT) -> None:
        self.live = Live(ended_kept)
        self.scheduler = Scheduler().initial()
        self.quota = Quota().initial()

    def apply(self, event: Event, at: datetime) -> None:
        """One event of any topic."""
        self.live.apply(Envelope(f"{event.type}-{at}", "/t", at, "s", event))
        topic, decision = topic_of(event.type), Decision("s", event)
        if topic is Scheduler().log:
            self.scheduler = Scheduler().evolve(self.scheduler, decision, at)
        elif topic is Quota().log:
            self.quota = Quota().evolve(self.quota, decision, at)

    def view(self) -> LiveView:
        """What readers see now. Of quota's state there is no copy: use it before it changes."""
        return LiveView(self.live, Copies([fork(self.scheduler)]), Copies([self.quota]))

    def restarted(self) -> Self:
        """The same with facts as a snapshot has them."""
        found = copy(self)
        found.live = Live.of(self.live.facts())
        return found


def fold(
    events: Sequence[Event], model: ReadModel | None = None, *, after_s: float = 0.0
) -> ReadModel:
    """The model after these events, a second apart from `NOW` on."""
    model = model or ReadModel()
    for index, event in enumerate(events):
        model.apply(event, NOW + timedelta(seconds=after_s + index))
    return model
