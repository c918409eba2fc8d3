"""Rules over the data of champions, which the registry compares with newer ones.

A subject without a finding is not watched any more, so its alert is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from gangline_alerts.core.model import Aged, DataNews, Finding, ModelData
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.state import AlertState
from gangline_schemas.alerts import AlertRule

RULES = (AlertRule.DATA_DRIFT, AlertRule.DATA_AGE)
_COLUMNS_NAMED = 5
_DAY = timedelta(days=1)


def findings(state: AlertState, rules: Rules, now: datetime) -> Iterator[Finding]:
    """The values of these rules now. Cost: the aliases of which something was found."""
    for held in state.models.values():
        own = rules.of_team(held.team)
        if own.data_drift.enabled and held.news:
            yield _drift(held, own)
        if own.data_age.enabled and held.aged is not None:
            yield _age(held, held.aged, own, now)


def subject_of(held: ModelData) -> str:
    """As MLflow names an alias."""
    return f"{held.model}@{held.alias}"


def moved(held: ModelData) -> int:
    """Columns that moved, in all data sets."""
    return sum(one.found for one in held.news.values())


def overdue_days(aged: Aged, now: datetime) -> float:
    """How much older the data are than the gate allows."""
    return (now - aged.made_at) / _DAY - aged.limit_days


def _drift(held: ModelData, rules: Rules) -> Finding:
    rule, count = rules.data_drift, moved(held)
    news = [one for one in held.news.values() if one.found]
    texts = "; ".join(map(_news, news)) or "no column moved"
    return Finding(
        AlertRule.DATA_DRIFT,
        subject_of(held),
        held.team,
        rule.severity,
        value=count,
        threshold=rule.above,
        holds=count > rule.above,
        message=f"newer data than those of model {subject_of(held)} of team {held.team} differ: "
        f"{texts}"[:_TEXT]
        + f"; see `gangline models drift {held.model} --alias {held.alias}`",
        since=max((one.at for one in news), default=None),
    )


_TEXT = 1000


def _news(one: DataNews) -> str:
    named = ", ".join(one.columns[:_COLUMNS_NAMED])
    more = f" and {one.found - _COLUMNS_NAMED} more" if one.found > _COLUMNS_NAMED else ""
    return f"{named}{more} in {one.snapshot}"


def _age(held: ModelData, aged: Aged, rules: Rules, now: datetime) -> Finding:
    rule = rules.data_age
    over = overdue_days(aged, now)
    days = over + aged.limit_days
    return Finding(
        AlertRule.DATA_AGE,
        subject_of(held),
        held.team,
        rule.severity,
        value=days,
        threshold=aged.limit_days + rule.over_days,
        holds=over > rule.over_days,
        message=f"the data of model {subject_of(held)} of team {held.team} are {days:.0f} days "
        f"old, and its gate allows {aged.limit_days:g}; train on newer ones than {aged.snapshot}",
    )
