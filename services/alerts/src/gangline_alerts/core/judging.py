"""Raises alerts and resolves them, each once.

Nothing is judged for a while after a takeover and while old input is read: what it says is not
known to be so any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from gangline_alerts.core.model import MOST_AT_ONCE, Alert, Finding, Watch
from gangline_alerts.core.policy import counted, of_models, of_runs
from gangline_alerts.core.policy.routes import Receivers
from gangline_alerts.core.policy.rules import MeasuredRule, Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.state import AlertPlan, AlertState, silence_of
from gangline_schemas.alerts import AlertRule, AlertText
from gangline_schemas.events.alerts import AlertRaised, AlertResolved

_BY_THE_SCHEDULER = {AlertRule.CLUSTER_UTILIZATION, AlertRule.QUEUE_WAIT}
Reason = Literal["recovered", "ended", "off"]


def note_spells(
    state: AlertState, soft: Watch, rules: Rules, timing: Timing, now: datetime
) -> None:
    """Note since when each measured condition holds, or does not; unknown ones have no spell."""
    holding, clear = soft.holding, soft.clear
    soft.holding, soft.clear = {}, {}
    soft.findings = tuple(
        _of_level(finding, level)
        for level, own in rules.levels().items()
        for finding in of_runs.findings(state, soft, own, timing, now)
    )
    for finding in soft.findings:
        old, new = (holding, soft.holding) if finding.holds else (clear, soft.clear)
        new[finding.key] = old.get(finding.key, now)


def judge(plan: AlertPlan, rules: Rules, timing: Timing, receivers: Receivers) -> None:
    """Raise and resolve what the facts and measurements ask for."""
    if not _is_caught_up(plan.soft, timing, plan.now):
        return
    levels = rules.levels()
    findings = [
        _of_level(finding, level)
        for level, own in levels.items()
        for of_state in (counted.findings, of_models.findings)
        for finding in of_state(plan.state, own, plan.now)
    ]
    found = {one.key: one for one in (*findings, *plan.soft.findings)}
    away = plan.soft.scheduler_away is not None
    for key, finding in found.items():
        if len(plan.decisions) >= MOST_AT_ONCE:
            return
        if away and finding.rule in _BY_THE_SCHEDULER:
            continue  # jobs wait for it, not for GPUs
        if finding.holds and key not in plan.state.alerts and _lasts(plan.soft, finding, rules):
            _raise(plan, finding, receivers)
    for key, alert in list(plan.state.alerts.items()):
        if len(plan.decisions) >= MOST_AT_ONCE:
            return
        reason = _over(plan, alert, found.get(key), levels)
        if reason is not None:
            _resolve(plan, alert, reason, found.get(key))


def _of_level(finding: Finding, level: str) -> Finding:
    return replace(finding, level=level) if level else finding


def _is_caught_up(soft: Watch, timing: Timing, now: datetime) -> bool:
    last = soft.began if soft.behind is None else soft.behind.last
    settled = timedelta(seconds=timing.settle_s)
    return soft.began is not None and last is not None and now - max(soft.began, last) >= settled


def _lasts(soft: Watch, finding: Finding, rules: Rules) -> bool:
    rule = rules.levels()[finding.level].of_team(finding.team).of(finding.rule)
    if not isinstance(rule, MeasuredRule):
        return True
    return _for(soft, soft.holding.get(finding.key), rule.for_s)


def _for(soft: Watch, since: datetime | None, for_s: float) -> bool:
    if since is None or soft.now is None:
        return False
    return (soft.now - since).total_seconds() >= for_s


def _over(
    plan: AlertPlan, alert: Alert, finding: Finding | None, levels: Mapping[str, Rules]
) -> Reason | None:
    """Why an alert is over; None: it is not, or nothing is known of it."""
    name, own = alert.text.rule, levels.get(alert.text.level)
    rule = None if own is None else own.of_team(alert.text.team).of(name)
    if own is None or rule is None or not rule.enabled:
        return "off"
    job = plan.state.jobs.get(alert.text.subject)
    since = None if finding is None else finding.since
    if since is not None and alert.text.raised_at < since <= plan.now:
        return "ended"  # it is about other data, and raised again
    if name in {*counted.RULES, *of_models.RULES}:
        use = name is AlertRule.CLUSTER_UTILIZATION
        unknown = use and finding is None and not counted.is_known(plan.state, own, plan.now)
        return None if unknown else _over_by_count(finding, known=job is not None)
    if job is None or not of_runs.watches(name, own, job):
        return "ended"
    if finding is None or not isinstance(rule, MeasuredRule):
        return None
    clear = _for(plan.soft, plan.soft.clear.get(finding.key), rule.clear_s)
    return "recovered" if clear else None


def _over_by_count(finding: Finding | None, *, known: bool) -> Reason | None:
    """Without a finding a job that is there no longer waits; else too little is there to judge."""
    if finding is None:
        return "recovered" if known else "ended"
    return None if finding.holds else "recovered"


def _raise(plan: AlertPlan, finding: Finding, receivers: Receivers) -> None:
    text = AlertText(
        number=plan.state.numbers.get("alert", 0) + 1,
        rule=finding.rule,
        level=finding.level,
        subject=finding.subject,
        team=finding.team,
        severity=finding.severity,
        value=finding.value,
        threshold=finding.threshold,
        message=finding.message,
        cause=finding.cause,
        raised_at=plan.now,
    )
    silence = silence_of(plan.state, text)
    targets = () if silence is not None else receivers.of_alert(text.rule, text.severity, text.team)
    plan.add(
        finding.subject,
        AlertRaised(**{name: getattr(text, name) for name in AlertText.model_fields},
                    silence=silence, targets=targets),
    )  # fmt: skip


def _resolve(plan: AlertPlan, alert: Alert, reason: Reason, finding: Finding | None) -> None:
    text = alert.text
    resolved = AlertResolved(
        number=text.number,
        rule=text.rule,
        level=text.level,
        subject=text.subject,
        team=text.team,
        reason=reason,
        value=None if finding is None else finding.value,
        resolved_at=plan.now,
    )
    plan.add(text.subject, resolved)
