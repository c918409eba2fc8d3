"""What a rank says, and what follows from it. No I/O, as in core.py."""

from __future__ import annotations

from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.rank_protocol import (
    DataDamaged,
    Doing,
    FromRank,
    Hello,
    LeaveOutSamples,
    Report,
    ShardReady,
    Troubled,
)

from . import announce
from .model import DAMAGE_LIMIT, Action, CheckShard, Gang, Moment, Note, Rank, SendControl


def hear(
    node: NodeInfo, gang: Gang, rank: Rank, message: FromRank, at: Moment, number: int
) -> list[Action]:
    """Take a message of a rank that lives, the agent's `number`th; [] for what says nothing new."""
    match message:
        case Hello():
            rank.connected = True
            return [SendControl(rank.key, gang.control)] if gang.asks else []
        case Report() as report if report.step:
            rank.step = max(report.step[-1], rank.step or 0)
            rank.pace.stepped(report.time_ms, at.mono_s)
            rank.pace.worked(report.metrics.get("busy_s", ()))
            return [announce.steps(gang, rank, report, number)]
        case Doing() as doing:
            rank.pace.said(doing.activity, at.mono_s)
        case Troubled() as troubled:
            rank.trouble = troubled.trouble
        case LeaveOutSamples() as told:
            rank.left_out = told.left_out
        case DataDamaged() as found if rank.damaged < DAMAGE_LIMIT:
            rank.damaged += 1
            return [announce.damaged(node, gang, rank, found)]
        case ShardReady() as ready if ready.step not in rank.uploads:
            wrong = ready.rank != rank.key.rank
            if wrong or ready.world_size != gang.allocation.world_size:
                return [Note("shard.refused", gang.key, "it names another rank or world size")]
            rank.uploads[ready.step] = ready
            return [CheckShard(rank.key, ready)]
    return []
