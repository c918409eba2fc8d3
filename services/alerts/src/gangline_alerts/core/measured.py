"""Measurements of runs and nodes: noted in the soft state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from gangline_alerts.core.model import Behind, NodeReading, RunReading, Watch
from gangline_alerts.core.state import AlertState
from gangline_bus.codec import Received
from gangline_schemas.catalog import Topic
from gangline_schemas.events.alerts import SavesCounted
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointCommitted
from gangline_schemas.events.heartbeats import NodeUse, WorkerHeartbeat
from gangline_schemas.events.progress import RunProgress

_LOGS = (
    Topic.SCHEDULING.value, Topic.FAULTS.value, Topic.CHECKPOINTS.value, Topic.REGISTRY.value,
)  # fmt: skip
LATE_S = 30.0
HELD_UP_S = 60.0


def note(state: AlertState, soft: Watch, received: Received, now: datetime) -> None:
    """Note an input or signal that was read now."""
    event = received.envelope.data
    recent = now - received.envelope.time < timedelta(days=1)
    match event:
        case RunProgress():
            _note_run(state, soft, event, now)
        case WorkerHeartbeat():
            _note_node(state, soft, event, now)
        case CheckpointCommitted():
            soft.saved += recent
            soft.counted[received.partition] = received.offset + 1
        case CheckpointAbandoned():
            job = state.jobs.get(event.job_id)
            if job is not None and job.places and job.attempt == event.attempt:
                soft.unsaved += recent  # of an attempt that ended nothing else was to be expected
            soft.counted[received.partition] = received.offset + 1
        case _:
            pass
    age_s = (now - received.envelope.time).total_seconds()
    if age_s > LATE_S and received.topic.endswith(_LOGS):
        since = now if soft.behind is None else soft.behind.since
        soft.behind = Behind(since, now, received.topic, age_s)


def settle(soft: Watch, settle_s: float, now: datetime) -> None:
    """Old input that stopped for `settle_s` holds up nothing any more."""
    behind = soft.behind
    if behind is not None and (now - behind.last).total_seconds() >= settle_s:
        soft.behind = None


def held_up(soft: Watch) -> str:
    """Why no rule is judged, if old input came for a minute; else empty."""
    behind = soft.behind
    if behind is None or (behind.last - behind.since).total_seconds() < HELD_UP_S:
        return ""
    return (
        f"no rule is judged since {behind.since:%Y-%m-%d %H:%M:%S} UTC: records of {behind.topic} "
        f"are {behind.age_s:.0f} s old when they are read. Either the clock of the service that "
        "writes them is behind, or this service has many records to read"
    )


def note_scheduler(soft: Watch, away_since: datetime | None, now: datetime, away_s: float) -> None:
    """Note whether the scheduler is away; once it is back, an absence of `away_s` or more."""
    before = soft.scheduler_away
    if away_since is None:
        soft.scheduler_away = None
        if before is not None and (now - before).total_seconds() >= away_s:
            soft.absence = before
    else:
        soft.scheduler_away = before or away_since


def counted(soft: Watch, event: SavesCounted) -> None:
    """The log has these saves."""
    soft.saved -= event.saved
    soft.unsaved -= event.failed
    soft.counted_at = soft.now


def begin_again(soft: Watch) -> None:
    """The clock was put back: earlier times say nothing, and would hold up all for as long."""
    soft.began = soft.behind = soft.counted_at = soft.scheduler_away = None
    for times in (soft.runs, soft.nodes, soft.holding, soft.clear):
        times.clear()


def forget(state: AlertState, soft: Watch) -> None:
    """Drop measurements of jobs and nodes that are gone."""
    for job_id in [job_id for job_id in soft.runs if job_id not in state.jobs]:
        del soft.runs[job_id]
    for node_id in [node_id for node_id in soft.nodes if node_id not in state.nodes]:
        del soft.nodes[node_id]


def _note_run(state: AlertState, soft: Watch, event: RunProgress, now: datetime) -> None:
    job = state.jobs.get(event.run_id)
    if job is None or job.team != event.team or job.attempt != event.attempt or not job.places:
        return
    metrics = event.metrics
    mfu = metrics.get("mfu")
    soft.runs[event.run_id] = RunReading(
        at=now,
        attempt=event.attempt,
        # A program may report any number; an alert's value is bounded.
        mfu=None if mfu is None else min(max(mfu, 0.0), 1.0),
        step_s=event.step_s,
        busy_s=metrics.get("busy_s"),
        data_wait_share=event.data_wait_share,
        stalled=event.stalled_since is not None,
    )


def _note_node(state: AlertState, soft: Watch, event: WorkerHeartbeat, now: datetime) -> None:
    if event.node_id not in state.nodes or not event.gpus:
        return
    soft.nodes[event.node_id] = NodeReading(
        at=now,
        busy={g.index: g.utilization / 100 for g in event.gpus if g.utilization is not None},
        sm=_sm_activity(event.use, soft.nodes.get(event.node_id)),
        cpu_percent=event.cpu_percent,
    )


def _sm_activity(use: NodeUse | None, before: NodeReading | None) -> Mapping[int, float]:
    """Not every heartbeat has a reading: the last one counts until the next."""
    if use is None:
        return {} if before is None else before.sm
    return {g.index: g.sm_percent / 100 for g in use.gpus if g.sm_percent is not None}
