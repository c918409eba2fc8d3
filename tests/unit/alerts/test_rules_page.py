"""docs/reference/alert-rules.md has each rule with its fields and their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gangline_alerts.core.policy.rules import MeasuredRule, Rule, Rules
from gangline_alerts.service.alerts_file import AlertsFile
from gangline_schemas.alerts import AlertRule, Severity

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "alert-rules.md").read_text()
ROWS = dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \| \w+ \|$", PAGE, re.MULTILINE))


def test_each_rule_stands_there() -> None:
    assert set(ROWS) == {rule.value for rule in AlertRule}


@pytest.mark.parametrize("name", list(AlertRule))
def test_its_own_fields_have_the_defaults_of_the_model(name: AlertRule) -> None:
    rule = Rules().of(name)
    written = {
        field: float(value) for field, value in re.findall(r"`(\w+)` ([0-9.]+)", ROWS[name.value])
    }
    own = set(type(rule).model_fields) - set(Rule.model_fields) - {"clear_s"}
    assert written == {field: float(getattr(rule, field)) for field in own}
    is_worst = rule.severity is Severity.CRITICAL
    assert is_worst == (f"of `{name.value}` it is `critical`" in PAGE)


def test_fields_of_all_rules_are_described() -> None:
    for field in (*Rule.model_fields, *MeasuredRule.model_fields):
        assert f"`{field}`" in PAGE
    assert f"`clear_s` {MeasuredRule().clear_s:.0f}:" in PAGE


def test_the_example_is_a_file_of_alerts() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    rules = AlertsFile.model_validate(yaml.safe_load(text)).rules
    assert rules.of_team("vision").queue_wait.above_s == 300
    assert rules.levels()["urgent"].queue_wait.severity is Severity.CRITICAL
