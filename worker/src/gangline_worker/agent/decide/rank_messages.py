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
    Troubled,
)

from . import announce
from .model import (
    DAMAGE_LIMIT,
    CheckShard,
    Effect,
    Gang,
    Moment,
    Note,
    Rank,
    RankMessage,
    SendControl,
)


def on_message(
    node: NodeInfo, gang: Gang, rank: Rank, said: RankMessage, at: Moment, number: int
) -> list[Effect]:
    """Take a message of a rank that lives, the agent's `number`th; [] for what says nothing new."""
    match said.message:
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
        case HandlesStop():
            rank.stopper = said.pid
        case Troubled() as troubled:
            rank.trouble = troubled.trouble
        case LeaveOutSamples() as told:
            rank.left_out = told.left_out
        case DataDamaged() as found if rank.damaged < DAMAGE_LIMIT:
            rank.damaged += 1
            return [announce.damaged(node, gang, rank, found)]
        case ShardReady() as ready if ready.step not in rank.uploads:
            if refusal := _refusal(gang, rank, ready):
                return [Note("shard.refused", gang.key, refusal)]
            behind = gang.behind
            rank.uploads[ready.step] = ready
            check = CheckShard(rank.key, ready)
            return [check, *gang.send_control()] if gang.behind != behind else [check]
    return []


def _refusal(gang: Gang, rank: Rank, ready: ShardReady) -> str | None:
    """Why a rank's part is not taken; None if it is."""
    if ready.rank != rank.key.rank or ready.world_size != gang.allocation.world_size:
        return "it names another rank or world size"
    if rank.saved is not None and ready.step <= rank.saved:  # it may be committed by now
        return f"step {ready.step} of rank {ready.rank} comes after step {rank.saved}"
    return None
