"""Facts that rules need, from the logs of the other deciders. Repeated inputs lead to nothing."""

from __future__ import annotations

from datetime import datetime

from gangline_alerts.core import notifying
from gangline_alerts.core.policy.routes import Receivers
from gangline_alerts.core.state import AlertPlan
from gangline_schemas.base import Event
from gangline_schemas.events.alerts import (
    GangFollowed,
    GangLeft,
    GangPlace,
    JobFollowed,
    JobLeft,
    JobPriorityFollowed,
    NodeFailureCounted,
    NodeFollowed,
    NodeGone,
)
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
    NodeUncordoned,
)

_NO_FAILURES = {"restarted", "forgotten"}
"""Reasons of node.failed that are no failure of the machine."""
_MAY_COME_BACK = {"drain", "outdated"}
"""Reasons of node.cordoned after which a node may be uncordoned as it is."""


def take(plan: AlertPlan, event: Event, at: datetime, receivers: Receivers) -> None:
    """Note what an event of another decider changes."""
    match event:
        case NodeAdmitted():
            _offer(plan, event.node.node_id, len(event.node.gpus), at)
        case NodeCordoned():
            _cordon(plan, event, at)
        case NodeUncordoned():
            gpus = plan.state.drained.get(event.node_id)
            if gpus is not None:
                _offer(plan, event.node_id, gpus, at)
        case NodeFailed():
            if event.reason not in _NO_FAILURES:
                plan.add(event.node_id, NodeFailureCounted(node_id=event.node_id, failed_at=at))
        case JobQueued():
            _queue(plan, event, at)
        case GangAllocated() | GangReleased() | JobReprioritized() | JobStateChanged():
            _of_job(plan, event, at, receivers)
        case _:
            pass


def _offer(plan: AlertPlan, node_id: str, gpus: int, at: datetime) -> None:
    if plan.state.nodes.get(node_id) != gpus:
        plan.add(node_id, NodeFollowed(node_id=node_id, gpus=gpus, since=at))


def _cordon(plan: AlertPlan, event: NodeCordoned, at: datetime) -> None:
    node_id, back = event.node_id, event.reason in _MAY_COME_BACK
    if node_id in plan.state.nodes or (node_id in plan.state.drained and not back):
        plan.add(node_id, NodeGone(node_id=node_id, back=back, since=at))


def _queue(plan: AlertPlan, event: JobQueued, at: datetime) -> None:
    if event.job_id in plan.state.jobs:
        return
    spec = event.spec
    followed = JobFollowed(
        job_id=event.job_id,
        team=spec.team,
        name=spec.name,
        priority=spec.priority,
        gpus=spec.resources.gpus,
        queued_at=at,
        notify=spec.notify,
    )
    plan.add(event.job_id, followed)


def _of_job(
    plan: AlertPlan,
    event: GangAllocated | GangReleased | JobReprioritized | JobStateChanged,
    at: datetime,
    receivers: Receivers,
) -> None:
    job_id = event.job_id
    job = plan.state.jobs.get(job_id)
    if job is None:
        return
    match event:
        case GangAllocated(attempt=attempt):
            places = tuple(GangPlace(node_id=one.node_id, gpus=one.gpus) for one in event.nodes)
            if attempt > job.attempt:
                followed = GangFollowed(
                    job_id=job_id, attempt=attempt, places=places, allocated_at=at
                )
                plan.add(job_id, followed)
        case GangReleased(attempt=attempt):
            if attempt == job.attempt and job.places:
                plan.add(job_id, GangLeft(job_id=job_id, attempt=attempt, released_at=at))
        case JobReprioritized(priority=priority):
            if priority != job.priority:
                plan.add(job_id, JobPriorityFollowed(job_id=job_id, priority=priority))
        case JobStateChanged(state=state):
            notifying.of_job(plan, event, at, receivers)
            if state.terminal:
                plan.add(job_id, JobLeft(job_id=job_id, state=state, ended_at=at))
