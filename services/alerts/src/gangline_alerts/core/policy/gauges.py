"""The values that rules compare with their thresholds, as gauges for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from gangline_alerts.core.model import Watch
from gangline_alerts.core.policy import of_models
from gangline_alerts.core.policy.counted import watched_s
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.state import AlertState, total
from gangline_schemas.alerts import AlertRule

OF_RUNS: Mapping[AlertRule, str] = {
    AlertRule.LOW_MFU: "gangline.run.mfu",
    AlertRule.DATA_LOADING: "gangline.run.data.loading",
    AlertRule.GPU_ACTIVITY: "gangline.run.gpu.activity",
}
"""Gauges of rules over measurements. Prometheus writes `_` for `.`."""
GAUGES: Mapping[str, str] = {
    "gangline.alerts.held": "Alerts that hold, by rule, severity and team",
    "gangline.alerts.behind": "Seconds since rules were judged, while input that comes is too old",
    "gangline.gpus.allocated": "GPUs of gangs",
    "gangline.gpus.offered": "GPUs of nodes that take gangs",
    "gangline.queue.wait": "Seconds of the longest wait of an urgent job, by team",
    "gangline.day.saves": "Saves of the last 24 hours, by outcome",
    "gangline.day.jobs": "Jobs that ended in the last 24 hours, by outcome",
    "gangline.day.node.failures": "Nodes that failed in the last 24 hours",
    "gangline.model.data.drift": "Columns of newer data that moved, by team and model@alias",
    "gangline.model.data.overdue": "Days beyond the age that a gate allows, by team and "
    "model@alias",
    OF_RUNS[AlertRule.LOW_MFU]: "MFU of large jobs (0 to 1), by team and job",
    OF_RUNS[AlertRule.DATA_LOADING]: "Share of time without waiting for data, by team and job",
    OF_RUNS[AlertRule.GPU_ACTIVITY]: "Mean activity of a gang's GPUs (0 to 1), by team and job",
}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One value of a gauge of `GAUGES`."""

    name: str
    value: float
    labels: Mapping[str, str]


def gauges(state: AlertState, soft: Watch, rules: Rules, now: datetime) -> Iterator[Gauge]:
    """All values now. Cost: the jobs."""
    held: dict[tuple[str, str, str], int] = {}
    for alert in state.alerts.values():
        key = (alert.text.rule.value, alert.text.severity.value, alert.text.team)
        held[key] = held.get(key, 0) + 1
    for (rule, severity, team), count in held.items():
        labels = {"rule": rule, "severity": severity, "team": team}
        yield Gauge("gangline.alerts.held", count, labels)
    waits = 0.0 if soft.behind is None else (now - soft.behind.since).total_seconds()
    yield Gauge("gangline.alerts.behind", waits, {})
    yield Gauge("gangline.gpus.allocated", state.totals.get("held", 0), {})
    yield Gauge("gangline.gpus.offered", state.totals.get("offered", 0), {})
    for level in rules.levels():
        yield from _waits(state, rules, level, now)
    counts = total(state.hours, now)
    for outcome, count in (("committed", counts.saved), ("failed", counts.unsaved)):
        yield Gauge("gangline.day.saves", count, {"outcome": outcome})
    for outcome, count in (
        ("succeeded", counts.ended - counts.failed),
        ("failed", counts.failed),
    ):
        yield Gauge("gangline.day.jobs", count, {"outcome": outcome})
    yield Gauge("gangline.day.node.failures", counts.node_failures, {})
    yield from _models(state, now)
    for finding in soft.findings:
        name, level, team = finding.rule, finding.level, finding.team
        if level and not rules.has_own_jobs(name, level, team):
            continue  # the same value
        labels = {"team": team, "job": finding.subject, **_of_level(level)}
        yield Gauge(OF_RUNS[name], finding.value, labels)


def _models(state: AlertState, now: datetime) -> Iterator[Gauge]:
    for held in state.models.values():
        labels = {"team": held.team, "model": of_models.subject_of(held)}
        if held.news:
            yield Gauge("gangline.model.data.drift", of_models.moved(held), labels)
        if held.aged is not None:
            over = of_models.overdue_days(held.aged, now)
            yield Gauge("gangline.model.data.overdue", over, labels)


def _waits(state: AlertState, rules: Rules, level: str, now: datetime) -> Iterator[Gauge]:
    own, first = rules.levels()[level], dict[str, datetime]()
    for job in state.jobs.values():
        since, team = job.waiting_since, job.team
        if since is None or job.priority >= own.of_team(team).queue_wait.priority_below:
            continue
        if not level or rules.has_own_jobs(AlertRule.QUEUE_WAIT, level, team):
            first[team] = min(first.get(team, since), since)
    for team, since in first.items():
        labels = {"team": team, **_of_level(level)}
        yield Gauge("gangline.queue.wait", watched_s(since, now, state.away), labels)


def _of_level(level: str) -> dict[str, str]:
    return {"level": level} if level else {}
