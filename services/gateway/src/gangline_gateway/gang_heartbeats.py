"""A gang's GPU utilization and rank activity, from the last heartbeats of its nodes."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple

from pydantic import ValidationError

from gangline_gateway.live_model import JobDetails, LiveNode
from gangline_gateway.live_view import LiveView
from gangline_schemas.api.jobs import Rank, RankRow, Ranks
from gangline_schemas.events.heartbeats import GangStatus, WorkerHeartbeat
from gangline_schemas.events.scheduling import NodeAssignment


class GangHeartbeats(NamedTuple):
    """Fields are None if no heartbeat reported them."""

    gpu_utilization: float | None = None
    ranks: Ranks | None = None


def heartbeat(node: LiveNode) -> WorkerHeartbeat | None:
    """The node's last heartbeat; None if its current incarnation sent none."""
    if not node.heartbeat:
        return None
    try:
        found = WorkerHeartbeat.decode(node.heartbeat)
    except ValidationError:
        return None
    return found if found.incarnation == node.info.incarnation else None


def of_gang(live: LiveView, one: JobDetails, now: datetime) -> GangHeartbeats:
    """The gang's GPU utilization and its ranks' activity. Cost: O(ranks)."""
    busy: list[float] = []
    doing: Counter[str] = Counter()
    quiet: list[Rank] = []
    for placed in one.gang.nodes if one.gang is not None else ():
        node = live.node(placed.node_id)
        beat = heartbeat(node) if node else None
        if node is None or beat is None:
            continue
        busy += [
            gpu.utilization
            for gpu in beat.gpus
            if gpu.index in placed.gpus and gpu.utilization is not None
        ]
        since_s = max(0.0, (now - node.heard_at).total_seconds()) if node.heard_at else 0.0
        for status in beat.gangs:
            if (status.job_id, status.attempt) == (one.job.job_id, one.job.attempt):
                doing.update(rank.activity or "running" for rank in status.ranks)
                quiet += _quiet(status, placed.node_id, since_s)
    ranks = None
    if doing:
        quietest = max(quiet, key=lambda rank: rank.quiet_s, default=None)
        ranks = Ranks(doing=dict(doing.most_common()), quietest=quietest)
    return GangHeartbeats(sum(busy) / len(busy) if busy else None, ranks)


def rank_rows(live: LiveView, one: JobDetails, now: datetime, wanted: range) -> list[RankRow]:
    """The ranks of a gang within a range, in order."""
    rows: list[RankRow] = []
    for placed in one.gang.nodes if one.gang is not None else ():
        ranks = placed.ranks
        if ranks.stop <= wanted.start or ranks.start >= wanted.stop:
            continue
        node = live.node(placed.node_id)
        rows += [row for row in _node_rows(one, node, placed, now) if row.rank in wanted]
    return sorted(rows, key=lambda row: row.rank)


def _node_rows(
    one: JobDetails, node: LiveNode | None, placed: NodeAssignment, now: datetime
) -> list[RankRow]:
    assert one.gang is not None  # noqa: S101 - its caller has one
    beat = heartbeat(node) if node else None
    since_s = max(0.0, (now - node.heard_at).total_seconds()) if node and node.heard_at else 0.0
    uses = {gpu.index: gpu.utilization for gpu in beat.gpus} if beat else {}
    known = {
        status.rank: status
        for gang in (beat.gangs if beat else ())
        if (gang.job_id, gang.attempt) == (one.job.job_id, one.gang.attempt)
        for status in gang.ranks
    }
    rows = []
    for rank, gpu in zip_longest(placed.ranks, placed.gpus):
        status = known.get(rank)
        quiet_s = status.quiet_s if status else None
        rows.append(
            RankRow(
                rank=rank,
                node_id=placed.node_id,
                gpu=gpu,
                status=one.gang.members[rank].value,
                activity=status.activity if status else None,
                step=status.step if status else None,
                quiet_s=quiet_s + since_s if quiet_s is not None else None,
                busy_s=status.busy_s if status else None,
                trouble=status.trouble.message if status and status.trouble else "",
                gpu_utilization=None if gpu is None else uses.get(gpu),
            )
        )
    return rows


def _quiet(status: GangStatus, node_id: str, since_s: float) -> list[Rank]:
    return [
        Rank(
            rank=rank.rank,
            node_id=node_id,
            activity=rank.activity,
            step=rank.step,
            quiet_s=rank.quiet_s + since_s,
        )
        for rank in status.ranks
        if rank.quiet_s is not None
    ]
