"""The effects of messages of ranks. No I/O, as in core.py."""

from __future__ import annotations

from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.rank_protocol import (
    DataDamaged,
    Doing,
    HandlesStop,
    Hello,
    LeaveOutSamples,
    Report,
    ShardReady,
    TrialPoint,
    Troubled,
)

from . import announce
from .effects import Effect, SendControl
from .gang import Gang, Rank
from .inputs import RankMessage
from .keys import Moment
from .saves import on_ready

DAMAGE_LIMIT = 64
"""So many damaged blocks of data are published of one rank: no program may flood the bus."""


def on_message(
    node: NodeInfo, gang: Gang, rank: Rank, received: RankMessage, at: Moment, number: int
) -> list[Effect]:
    """Take a message of a rank that lives, the agent's `number`th; [] for what says nothing new."""
    match received.message:
        case Hello():
            rank.connected = True
            return [SendControl(rank.key, gang.control)] if gang.has_requests else []
        case Report() as report if report.step:
            rank.step = max(report.step[-1], rank.step or 0)
            rank.pace.stepped(report.time_ms, at.mono_s)
            rank.pace.worked(report.metrics.get("busy_s", ()))
            return [announce.steps(gang, rank, report, number)]
        case TrialPoint() as point:
            return announce.trial_point(gang, rank, rank.points.take(point, at.mono_s))
        case Doing() as doing:
            rank.pace.change_activity(doing.activity, at.mono_s)
        case HandlesStop():
            rank.stopper = received.pid
        case Troubled() as troubled:
            rank.trouble = troubled.trouble
        case LeaveOutSamples() as excluded:
            rank.left_out = excluded.left_out
        case DataDamaged() as found if rank.damaged < DAMAGE_LIMIT:
            rank.damaged += 1
            return [announce.damaged(node, gang, rank, found)]
        case ShardReady() as ready:
            return on_ready(gang, rank, ready)
    return []
