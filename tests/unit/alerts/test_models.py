"""Alerts about the data of champions: raised once, until the data or the champion change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gangline_alerts.core.policy.rules import Rules
from gangline_schemas.alerts import AlertRule
from gangline_schemas.events.registry import (
    AliasMoved,
    DataAged,
    DriftAbsent,
    DriftFound,
    GateRemoved,
    GateSet,
)
from gangline_schemas.gate_file import Gate
from gangline_schemas.models import ColumnDrift
from support.builders.alerts import AlertsRun

ALIAS = {"team": "nlp", "model": "summarizer", "alias": "champion"}
DRIFT, AGE = AlertRule.DATA_DRIFT, AlertRule.DATA_AGE


def snapshot(number: int, dataset: str = "news") -> str:
    return f"{dataset}@xxh3-{number:032x}"


def watched(rules: dict[str, Any] | None = None) -> AlertsRun:
    run = AlertsRun(Rules.model_validate(rules or {}))
    run.settle()
    return run


def found(run: AlertsRun, to: str, columns: int = 1, version: int = 1) -> None:
    names = [f"c{number}" for number in range(min(columns, 20))]
    moved = tuple(ColumnDrift(column=name, kind="number", shift=0.5) for name in names)
    event = DriftFound(
        **ALIAS, version=version, baseline=snapshot(0), snapshot=to, columns=moved, found=columns
    )
    run.feed(event)
    run.tick(1)
    run.tick(1)


def absent(run: AlertsRun, to: str) -> None:
    run.feed(DriftAbsent(**ALIAS, version=1, baseline=snapshot(0), snapshot=to))
    run.tick(1)


def move(run: AlertsRun, to: int = 2) -> None:
    moved = AliasMoved(
        **ALIAS, number=1, from_version=1, to_version=to, expected=1, kind="gate", by="ada"
    )
    run.feed(moved)
    run.tick(1)


def age(run: AlertsRun, days: float, limit: float) -> None:
    made = run.now - timedelta(days=days)
    run.feed(DataAged(**ALIAS, version=1, snapshot=snapshot(0), made_at=made, limit_days=limit))
    run.tick(1)


def gate(run: AlertsRun, training_data: dict[str, Any] | None, alias: str = "champion") -> None:
    given = {"model": "summarizer", "team": "nlp", "aliases": [alias], "baseline": "current",
             "approvals": 1, "training_data": training_data}  # fmt: skip
    run.feed(GateSet(config=Gate.model_validate(given), digest="0" * 64, user="ada"))
    run.tick(1)


def reasons(run: AlertsRun, rule: AlertRule) -> list[str]:
    return [one.reason for one in run.resolved(rule)]


def test_drift_is_raised_once_for_a_snapshot_and_over_with_the_next_that_has_none() -> None:
    run = watched()
    found(run, snapshot(1), columns=7)
    found(run, snapshot(1), columns=7)
    run.pass_time(3600, 60)
    [alert] = run.raised(DRIFT)
    assert (alert.subject, alert.team, alert.value) == ("summarizer@champion", "nlp", 7)
    assert "c0, c1, c2, c3, c4 and 2 more in news@" in alert.message
    assert "gangline models drift summarizer --alias champion" in alert.message
    absent(run, snapshot(2))
    assert reasons(run, DRIFT) == ["recovered"]
    absent(run, snapshot(3))
    run.pass_time(600)
    assert len(run.due()) == 2, "raised and resolved; data without drift are no news"


def test_what_was_found_by_a_clock_that_was_ahead_is_raised_once() -> None:
    run = AlertsRun()
    run.tick()
    found(run, snapshot(1))
    run.now -= timedelta(hours=5)
    run.pass_time(120, 1)
    assert [one.number for one in run.raised(DRIFT)] == [1]


def test_the_next_snapshot_that_drifts_is_an_alert_of_its_own() -> None:
    run = watched()
    found(run, snapshot(1))
    found(run, snapshot(2))
    assert reasons(run, DRIFT) == ["ended"]
    assert [snapshot(n) in one.message for n, one in enumerate(run.raised(DRIFT), 1)] == [True] * 2


def test_another_data_set_without_drift_leaves_the_alert() -> None:
    run = watched()
    found(run, snapshot(1))
    absent(run, snapshot(1, "web"))
    assert reasons(run, DRIFT) == []
    found(run, snapshot(2, "web"))
    absent(run, snapshot(2))
    assert len(run.raised(DRIFT)) == 2, "the second is about both"
    assert reasons(run, DRIFT) == ["ended"]


def test_a_move_of_the_alias_ends_both_and_a_takeover_changes_nothing() -> None:
    run = watched()
    found(run, snapshot(1))
    age(run, 31, 30)
    [old] = run.raised(AGE)
    assert (old.threshold, round(old.value)) == (30, 31)
    run.take_over()
    run.settle()
    move(run)
    assert (reasons(run, DRIFT), reasons(run, AGE)) == (["ended"], ["ended"])
    found(run, snapshot(1), version=2)
    assert len(run.raised(DRIFT)) == 2, "another champion, another finding"


@pytest.mark.parametrize(("over", "raised"), [(0, 1), (10, 0)])
def test_data_may_be_so_many_days_older_than_the_gate_allows(over: float, raised: int) -> None:
    run = watched({"data_age": {"over_days": over}})
    age(run, 35, 30)
    assert len(run.raised(AGE)) == raised
    run.tick(6 * 86_400)
    run.settle()
    assert len(run.raised(AGE)) == 1


@pytest.mark.parametrize(
    ("training_data", "alias", "ended"),
    [
        ({"max_age_days": 30}, "champion", []),
        ({"max_age_days": 90}, "champion", ["recovered"]),
        ({"drift": {}}, "champion", ["recovered"]),
        (None, "champion", ["ended"]),
        ({"max_age_days": 30}, "other", ["ended"]),
    ],
)
def test_a_new_gate_allows_other_ages(
    training_data: dict[str, Any] | None, alias: str, ended: list[str]
) -> None:
    run = watched()
    age(run, 35, 30)
    gate(run, training_data, alias)
    assert reasons(run, AGE) == ended


def test_a_limit_that_a_gate_has_again_counts_again() -> None:
    run = watched()
    age(run, 35, 30)
    gate(run, {"drift": {}})
    gate(run, {"max_age_days": 30})
    assert len(run.raised(AGE)) == 2


def test_a_gate_without_limits_of_drift_ends_its_alert() -> None:
    run = watched()
    found(run, snapshot(1))
    gate(run, {"drift": None})
    assert reasons(run, DRIFT) == ["recovered"]


def test_a_gate_that_is_removed_ends_all() -> None:
    run = watched()
    found(run, snapshot(1))
    run.feed(GateRemoved(team="nlp", model="summarizer", user="ada"))
    run.tick(1)
    assert reasons(run, DRIFT) == ["ended"]
    assert run.state.models == {}


def test_a_team_and_a_level_have_thresholds_of_their_own() -> None:
    levels = {"much": {"above": 9, "severity": "critical"}}
    rules = {"data_drift": {"levels": levels}, "teams": {"nlp": {"data-drift": {"above": 1}}}}
    run = watched(rules)
    found(run, snapshot(1), columns=1)
    assert run.raised(DRIFT) == []
    found(run, snapshot(2), columns=10)
    assert [(one.level, one.severity) for one in run.raised(DRIFT)] == [
        ("", "warning"), ("much", "critical"),
    ]  # fmt: skip
