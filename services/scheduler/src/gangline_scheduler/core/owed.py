"""Whether waiting jobs must still be looked at: inputs that were read together share one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gangline_bus.codec import Received
from gangline_bus.decision import Decision, Observed
from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import (
    GangReleased,
    JobStateChanged,
    NodeAdmitted,
    NodeUncordoned,
    TeamBudgetNoted,
    TeamNoted,
)
from gangline_schemas.job import JobState

_MAKE_ROOM = (TeamNoted, TeamBudgetNoted, NodeAdmitted, NodeUncordoned, GangReleased)


@dataclass(frozen=True, slots=True)
class Owed:
    """The scheduler's soft state. A takeover forgets it, and the next Tick makes the pass.

    `room`: the input that is decided now made room. `a_pass`: an earlier one of the same batch did,
    and the pass follows all of them.
    """

    room: bool = False
    a_pass: bool = False


def after(soft: Owed, observed: Observed) -> Owed:
    """The soft state after a decision, after the input that led to it, and after a batch.

    A Tick makes a full pass by itself.
    """
    match observed:
        case Decision(event=event):
            return replace(soft, room=soft.room or makes_room(event))
        case Received(together=True):
            return Owed(a_pass=soft.room or soft.a_pass)
    return Owed()


def makes_room(event: Event) -> bool:
    """Whether a waiting job may fit after this event that did not before."""
    if isinstance(event, JobStateChanged):  # a job that left the queue may have held others back
        return event.previous is JobState.PENDING and event.state.terminal
    return isinstance(event, _MAKE_ROOM)
