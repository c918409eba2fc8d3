"""Notifications: when they are due, and what follows from a delivery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from gangline_alerts.core.model import Deliver, Delivered, Undelivered, Watch
from gangline_alerts.core.policy.routes import Receivers
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.state import AlertPlan, AlertState
from gangline_bus.decision import EffectDone
from gangline_schemas.alerts import CLUSTER, AlertRule, JobText
from gangline_schemas.clocks import lasts
from gangline_schemas.events.alerts import (
    NotificationDeferred,
    NotificationDelivered,
    NotificationDue,
    NotificationFailed,
)
from gangline_schemas.events.scheduling import JobStateChanged

MOST_OPEN = 1000
"""Notifications that wait for one receiver; it may answer slowly or never."""


def of_job(plan: AlertPlan, event: JobStateChanged, at: datetime, receivers: Receivers) -> None:
    """Notify those that the job's spec names for this state."""
    job = plan.state.jobs[event.job_id]
    targets = dict.fromkeys(one.webhook for one in job.notify if event.state in one.on)
    for target in targets:
        text = JobText(
            job_id=event.job_id,
            name=job.name,
            team=job.team,
            previous=event.previous,
            state=event.state,
            reason=event.reason,
            changed_at=at,
        )
        due = NotificationDue(
            notification=_name(plan.state), target=target, team=job.team, job=text, due_at=plan.now
        )
        plan.add(event.job_id, due)
        problem = receivers.problem(target, job.team)
        if problem is None and _open(plan.state)[target] > MOST_OPEN:
            problem = f"{MOST_OPEN} earlier notifications still wait for the receiver"
        if problem is not None:
            failed = NotificationFailed(notification=due.notification, tries=0, reason=problem)
            plan.add(event.job_id, failed)


def of_groups(plan: AlertPlan, timing: Timing) -> None:
    """Send the groups of alerts that have waited long enough for others, and have room."""
    if not plan.state.groups:
        return
    waiting = _open(plan.state)
    for key, group in list(plan.state.groups.items()):
        ends_s = (timing.group_s, group.since), (timing.again_s, plan.state.grouped.get(key))
        waits = any(
            at is not None and lasts(at, plan.now, timedelta(seconds=for_s)) for for_s, at in ends_s
        )
        target, rule, team = key.split("/")
        if waits or waiting[target] >= MOST_OPEN:
            continue
        due = NotificationDue(
            notification=_name(plan.state),
            target=target,
            team=team,
            rule=AlertRule(rule),
            raised=group.raised,
            resolved=group.resolved,
            more=group.more,
            due_at=plan.now,
        )
        plan.add(team or CLUSTER, due)


def wanted(state: AlertState, soft: Watch, timing: Timing) -> Mapping[str, Deliver]:
    """The deliveries that are due, by key. Each try has its own key."""
    if soft.now is None:
        return {}
    latest = soft.now + timedelta(seconds=timing.longest_retry_s)
    return {
        f"{name}:{one.tries}": Deliver(one.due)
        for name, one in state.open.items()
        if not soft.now < one.next_at <= latest  # later: of a clock that was put back
    }


def done(plan: AlertPlan, item: EffectDone, timing: Timing) -> None:
    """Decide upon the outcome of a try; of an earlier one there is nothing to decide."""
    name, _, tries = item.key.rpartition(":")
    delivery = plan.state.open.get(name)
    if delivery is None or str(delivery.tries) != tries:
        return
    count = delivery.tries + 1
    subject = delivery.due.target
    match item.result:
        case Delivered(took_s, answer):
            delivered = NotificationDelivered(
                notification=name, tries=count, took_s=took_s, answer=answer
            )
            plan.add(subject, delivered)
        case Undelivered(reason, final):
            if final or count >= timing.tries:
                failed = NotificationFailed(notification=name, tries=count, reason=reason)
                plan.add(subject, failed)
                return
            next_at = plan.now + timedelta(seconds=timing.retry_s(count))
            deferred = NotificationDeferred(
                notification=name, tries=count, reason=reason, next_at=next_at
            )
            plan.add(subject, deferred)
        case _:
            raise TypeError(f"{item.key}: {type(item.result).__name__} is not an outcome of it")


def _open(state: AlertState) -> Counter[str]:
    return Counter(one.due.target for one in state.open.values())


def _name(state: AlertState) -> str:
    return f"n{state.numbers.get('notification', 0) + 1}"
