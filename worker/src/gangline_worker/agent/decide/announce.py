"""Effects that publish the agent's events about its node, gangs and ranks."""

from __future__ import annotations

from collections.abc import Iterable

from gangline_schemas.artifacts import Artifact
from gangline_schemas.events import workers
from gangline_schemas.events.heartbeats import WorkerHeartbeat
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import ExitReason, NodeInfo, WorkerExited
from gangline_schemas.rank_protocol import DataDamaged, Report, TrialPoint

from .effects import Effect, Publish, SendHeartbeat
from .gang import Gang, Rank
from .inputs import RankStacks
from .keys import GangKey, Moment
from .trial_points import reported

REASON_LIMIT = 1000


def identity(gang: Gang, rank: Rank) -> tuple[str | int, ...]:
    """Of one rank in one life of its node."""
    return (gang.incarnation, gang.key.job_id, gang.key.attempt, rank.key.rank)


def joined(node: NodeInfo) -> Publish:
    """The node offers its GPUs as this incarnation."""
    return Publish(
        node.node_id, workers.NodeJoined(node=node), (node.incarnation, node.release or "")
    )


def unfit(node: NodeInfo, failures: tuple[str, ...], at: Moment) -> Publish:
    """The node does not join: this is wrong with it."""
    event = workers.NodeUnfit(node=node, reasons=failures, checked_at=at.utc)
    return Publish(node.node_id, event, (node.incarnation, at.utc.isoformat()), spooled=False)


def leaving(node: NodeInfo, reason: str) -> Publish:
    """The node takes nothing more, and will be gone."""
    event = workers.NodeLeaving(node_id=node.node_id, incarnation=node.incarnation, reason=reason)
    return Publish(node.node_id, event, (node.incarnation,))


def heartbeat(
    node: NodeInfo, gangs: Iterable[Gang], number: int, at: Moment, *, joined: bool
) -> SendHeartbeat:
    """The node is alive at this moment, and so are the ranks of these gangs."""
    return SendHeartbeat(
        WorkerHeartbeat(
            node_id=node.node_id,
            incarnation=node.incarnation,
            sequence=number,
            sent_at=at.utc,
            joined=joined,
            gangs=tuple(gang.status(at.mono_s) for gang in gangs if gang.alive),
        )
    )


def started(node: NodeInfo, gang: Gang, rank: Rank) -> Publish:
    """The rank's process runs."""
    event = workers.WorkerStarted(
        job_id=gang.key.job_id,
        attempt=gang.key.attempt,
        rank=rank.key.rank,
        node_id=node.node_id,
        incarnation=gang.incarnation,
        pid=rank.pid,
    )
    return Publish(gang.key.job_id, event, identity(gang, rank))


def steps(gang: Gang, rank: Rank, report: Report, number: int) -> Publish:
    """The steps of a report, the agent's `number`th."""
    event = WorkerStep(
        run_id=gang.key.job_id,
        team=gang.allocation.team,
        attempt=gang.key.attempt,
        rank=rank.key.rank,
        step=report.step,
        time_ms=report.time_ms,
        metrics=report.metrics,
    )
    return Publish(gang.key.job_id, event, (*identity(gang, rank), number))


def trial_point(gang: Gang, rank: Rank, point: TrialPoint | None) -> list[Effect]:
    """A trial was evaluated; [] where that is nothing to a study."""
    key = gang.key
    event = reported(gang.allocation.spec.trial, key.job_id, key.attempt, point)
    if event is None or rank.key.rank != 0:
        return []
    return [Publish(key.job_id, event, (*identity(gang, rank), event.step))]


def saved(node: NodeInfo, gang: Gang, step: int) -> Publish:
    """All ranks here have their part of a checkpoint on this disk."""
    event = workers.NodeSaved(
        job_id=gang.key.job_id,
        attempt=gang.key.attempt,
        step=step,
        node_id=node.node_id,
        ranks=tuple(gang.ranks),
    )
    once = (gang.incarnation, gang.key.job_id, gang.key.attempt, node.node_id, step)
    return Publish(gang.key.job_id, event, once)


def output(node: NodeInfo, gang: Gang, rank: Rank, name: str, artifact: Artifact) -> Publish:
    """An artifact that the job left is in the store."""
    event = workers.StepOutputWritten(
        job_id=gang.key.job_id,
        attempt=gang.key.attempt,
        node_id=node.node_id,
        name=name,
        artifact=artifact,
    )
    return Publish(gang.key.job_id, event, (*identity(gang, rank), name))


def lost(node: NodeInfo, gang: Gang, rank: Rank, step: int, reason: str) -> Publish:
    """The rank's part of a checkpoint is not in the store, and will not be."""
    event = workers.CheckpointShardLost(
        job_id=gang.key.job_id,
        attempt=gang.key.attempt,
        step=step,
        rank=rank.key.rank,
        node_id=node.node_id,
        reason=reason[:REASON_LIMIT],
    )
    return Publish(gang.key.job_id, event, (*identity(gang, rank), step))


def damaged(node: NodeInfo, gang: Gang, rank: Rank, found: DataDamaged) -> Publish:
    """The rank leaves a block of its data out."""
    event = workers.DataBlockDamaged(
        job_id=gang.key.job_id,
        attempt=gang.key.attempt,
        rank=rank.key.rank,
        node_id=node.node_id,
        snapshot=found.snapshot,
        shard=found.shard,
        block=found.block,
        reason=found.reason,
    )
    once = (*identity(gang, rank), found.snapshot, found.shard, found.block)
    return Publish(gang.key.job_id, event, once)


def stacks(node: NodeInfo, key: GangKey, found: RankStacks, last_step: int | None) -> Publish:
    """The stacks of a hanging rank."""
    event = workers.WorkerStacks(
        job_id=key.job_id,
        attempt=key.attempt,
        rank=found.rank.rank,
        node_id=node.node_id,
        pid=found.pid,
        state=found.state,
        last_step=last_step,
        stacks=found.text,
        missing=found.missing,
    )
    return Publish(key.job_id, event, (node.node_id, key.job_id, key.attempt, found.rank.rank))


def exit_of(node: NodeInfo, gang: Gang, rank: Rank, reason: ExitReason) -> WorkerExited:
    """The end of a rank, as far as the agent knows it without its process."""
    return WorkerExited(
        job_id=gang.key.job_id,
        attempt=gang.key.attempt,
        rank=rank.key.rank,
        node_id=node.node_id,
        incarnation=gang.incarnation,
        reason=reason,
        last_step=rank.step,
        left_out=rank.left_out,
    )


def exited(event: WorkerExited) -> Publish:
    """The rank is over."""
    once = (event.incarnation, event.job_id, event.attempt, event.rank)
    return Publish(event.job_id, event, once)
