"""The rules of alerts with their thresholds: defaults, a file, and a team's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_gateway.alert_rules import AlertRules
from gangline_gateway.problems import ProblemError
from gangline_schemas.alerts import AlertRule, Severity
from gangline_schemas.api.alerts import RuleRow

FILE = """
rules:
  queue-wait: {above_s: 3600, levels: {urgent: {above_s: 9000, severity: critical}}}
  cluster-utilization: {enabled: false}
  teams:
    vision: {queue-wait: {above_s: 600, severity: critical}}
receivers:
  hook: {url: "https://hooks.example/"}
"""


def thresholds(row: RuleRow) -> dict[str, float]:
    return {one.name: one.value for one in row.thresholds}


def test_without_a_file_all_rules_have_their_defaults() -> None:
    rows = AlertRules().rows()
    assert [row.rule for row in rows] == [*AlertRule]
    wait = next(row for row in rows if row.rule == "queue-wait")
    assert thresholds(wait) == {"above_s": 7200, "priority_below": 50}
    assert wait.about == "job"
    assert all(one.description for one in wait.thresholds)
    assert {row.rule for row in rows if row.about == "cluster"} == {
        "cluster-utilization", "failed-saves", "node-failures", "failed-jobs",
    }  # fmt: skip
    assert {row.rule for row in rows if row.about == "model"} == {"data-drift", "data-age"}


def test_a_team_has_a_form_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(FILE, encoding="utf-8")
    rows = AlertRules(path).rows()
    found = {(row.rule, row.team): row for row in rows if not row.level}
    assert not found[AlertRule.CLUSTER_UTILIZATION, ""].enabled
    assert thresholds(found[AlertRule.QUEUE_WAIT, ""])["above_s"] == 3600
    own = found[AlertRule.QUEUE_WAIT, "vision"]
    assert (thresholds(own), own.severity) == (
        {"above_s": 600, "priority_below": 50}, Severity.CRITICAL,
    )  # fmt: skip


def test_a_level_is_a_row_of_its_own_also_for_teams(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text(FILE, encoding="utf-8")
    levels = [row for row in AlertRules(path).rows() if row.level]
    assert [(row.level, row.rule, row.team, thresholds(row)["above_s"]) for row in levels] == [
        ("urgent", AlertRule.QUEUE_WAIT, "", 9000),
        ("urgent", AlertRule.QUEUE_WAIT, "vision", 9000),
    ]


def test_a_wrong_file_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yaml"
    path.write_text("rules: {queue-wait: {above_s: -1}}", encoding="utf-8")
    with pytest.raises(ProblemError):
        AlertRules(path).rows()
