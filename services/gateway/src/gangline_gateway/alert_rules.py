"""The rules of alerts with their thresholds, from the file that the alerts service reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from gangline_alerts.core.policy import of_models
from gangline_alerts.core.policy.rules import Rule, Rules, TeamRules, by_rule
from gangline_gateway.problems import unavailable
from gangline_schemas.alerts import AlertRule
from gangline_schemas.api.alerts import RuleRow, Threshold
from gangline_service.config_file import ConfigFileError, read_config_file

_OF_TEAMS = frozenset(TeamRules.model_fields)


@dataclass(frozen=True)
class AlertRules:
    """The file of alerts as it is now; without one, the defaults."""

    path: Path | None = None

    def rows(self) -> list[RuleRow]:
        """The general rules, then those of teams; then the same for each level that is on.

        Raises a 503 problem for a wrong file.
        """
        return [row for level, rules in self._read().levels().items() for row in _of(level, rules)]

    def _read(self) -> Rules:
        if self.path is None:
            return Rules()
        try:
            content = read_config_file(self.path)
            rules = content.get("rules", {}) if isinstance(content, dict) else {}
            return Rules.model_validate(by_rule(rules))
        except (ConfigFileError, ValidationError):
            raise unavailable(
                "rules-away", "the gateway cannot read the file of alerts; its log has the reason"
            ) from None


def _of(level: str, rules: Rules) -> Iterator[RuleRow]:
    general = (_row(name, rules.of(name), "") for name in AlertRule)
    for row in (*general, *_of_teams(rules)):
        if row.enabled or not level:
            yield row.model_copy(update={"level": level})


def _of_teams(rules: Rules) -> Iterator[RuleRow]:
    for team, own in sorted(rules.teams.items()):
        for field in own.given():
            name = AlertRule(field.replace("_", "-"))
            yield _row(name, rules.of_team(team).of(name), team)


def _row(name: AlertRule, rule: Rule, team: str) -> RuleRow:
    fields = {key: of for key, of in type(rule).model_fields.items() if key not in _COMMON}
    return RuleRow(
        rule=name,
        team=team,
        about=_about(name),
        description=(type(rule).__doc__ or "").strip(),
        enabled=rule.enabled,
        severity=rule.severity,
        thresholds=[
            Threshold(name=key, value=getattr(rule, key), description=of.description or "")
            for key, of in fields.items()
        ],
    )


def _about(name: AlertRule) -> Literal["job", "cluster", "model"]:
    if name in of_models.RULES:
        return "model"
    return "job" if name.value.replace("-", "_") in _OF_TEAMS else "cluster"


_COMMON = frozenset(Rule.model_fields)
