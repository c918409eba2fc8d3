"""Rules over the log's own facts: use of GPUs, waits, and counts of a day.

A subject without a finding is fine, so its alert is resolved; but see `is_known`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from gangline_alerts.core.model import Finding, Span
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.state import AlertState, total
from gangline_schemas.alerts import CLUSTER, AlertRule

RULES = (
    AlertRule.CLUSTER_UTILIZATION,
    AlertRule.QUEUE_WAIT,
    AlertRule.FAILED_SAVES,
    AlertRule.NODE_FAILURES,
    AlertRule.FAILED_JOBS,
)


def findings(state: AlertState, rules: Rules, now: datetime) -> Iterator[Finding]:
    """The values of these rules now. Cost: the jobs that wait."""
    if rules.cluster_utilization.enabled:
        yield from _utilization(state, rules, now)
    yield from _waits(state, rules, now)
    yield from _counts(state, rules, now)


def _utilization(state: AlertState, rules: Rules, now: datetime) -> Iterator[Finding]:
    rule, known = rules.cluster_utilization, is_known(state, rules, now)
    begin = now - timedelta(seconds=rule.for_s) if known else state.away[-1].until
    first = int(begin.timestamp()) // 60
    before = [minute for minute in state.usage if minute <= first]
    if not before:
        return
    at_begin, last = state.usage[max(before)], int(now.timestamp()) // 60
    used = [use for at, use in state.usage.items() if first < at <= last]
    if any(use.offered < max(1, rule.gpus_at_least) for use in (at_begin, *used)):
        return
    share = max(at_begin.share, *(use.busiest for use in used), 0.0)
    if share < rule.below and not known:
        return
    yield Finding(
        AlertRule.CLUSTER_UTILIZATION,
        CLUSTER,
        "",
        rule.severity,
        value=share,
        threshold=rule.below,
        holds=share < rule.below,
        message=f"{state.totals.get('held', 0)} of {state.totals.get('offered', 0)} GPUs are "
        "allocated; for "
        f"{_span(rule.for_s)} it was below {rule.below:.0%} (at most {share:.0%})",
    )


def is_known(state: AlertState, rules: Rules, now: datetime) -> bool:
    """Whether the use of GPUs was watched for the whole time that the rule asks for."""
    begin = now - timedelta(seconds=rules.cluster_utilization.for_s)
    return not state.away or not begin < state.away[-1].until <= now


def _waits(state: AlertState, rules: Rules, now: datetime) -> Iterator[Finding]:
    for job_id, job in state.jobs.items():
        if job.waiting_since is None:
            continue
        rule = rules.of_team(job.team).queue_wait
        if not rule.enabled or job.priority >= rule.priority_below:
            continue
        if job.waiting_since >= now - timedelta(seconds=rule.above_s):
            continue
        waited_s = watched_s(job.waiting_since, now, state.away)
        if waited_s <= rule.above_s:
            continue
        yield Finding(
            AlertRule.QUEUE_WAIT,
            job_id,
            job.team,
            rule.severity,
            value=waited_s,
            threshold=rule.above_s,
            holds=True,
            message=f"job {job.name} of team {job.team} (priority {job.priority}, "
            f"{job.gpus or 'no'} GPUs) waits for {_span(waited_s)}; see `gangline explain "
            f"{job_id}`",
        )


def _counts(state: AlertState, rules: Rules, now: datetime) -> Iterator[Finding]:
    counts = total(state.hours, now)
    jobs, saves, nodes = rules.failed_jobs, rules.failed_saves, rules.node_failures
    all_saves = counts.saved + counts.unsaved
    if saves.enabled and all_saves >= max(1, saves.at_least):
        share = counts.unsaved / all_saves
        yield Finding(
            AlertRule.FAILED_SAVES,
            CLUSTER,
            "",
            saves.severity,
            value=share,
            threshold=saves.above,
            holds=share > saves.above,
            message=f"{counts.unsaved} of {all_saves} saves in 24 hours were never committed "
            f"({share:.1%}); see `gangline events --topic checkpoints`",
        )
    if nodes.enabled:
        yield Finding(
            AlertRule.NODE_FAILURES,
            CLUSTER,
            "",
            nodes.severity,
            value=counts.node_failures,
            threshold=nodes.above,
            holds=counts.node_failures > nodes.above,
            message=f"{counts.node_failures} nodes failed in 24 hours; see `gangline nodes`",
        )
    if jobs.enabled and counts.ended >= max(1, jobs.at_least):
        share = counts.failed / counts.ended
        yield Finding(
            AlertRule.FAILED_JOBS,
            CLUSTER,
            "",
            jobs.severity,
            value=share,
            threshold=jobs.above,
            holds=share > jobs.above,
            message=f"{counts.failed} of {counts.ended} jobs that ended in 24 hours failed "
            f"({share:.0%}); see `gangline incidents`",
        )


def watched_s(since: datetime, now: datetime, away: tuple[Span, ...]) -> float:
    """Seconds from `since` to `now` in which this service watched."""
    gone = 0.0
    for one in reversed(away):  # the newest first: earlier ones cost nothing
        if one.until <= since:
            break
        gone += max(0.0, (min(one.until, now) - max(one.since, since)).total_seconds())
    return max(0.0, (now - since).total_seconds() - gone)


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{round(seconds)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
