"""Routes from alerts to receivers, and the teams that may use a receiver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import Field

from gangline_schemas.alerts import AlertRule, Severity
from gangline_schemas.base import Identifier, Model

_ORDER = [Severity.INFO, Severity.WARNING, Severity.CRITICAL]


class Route(Model):
    """Alerts that fit all fields go to the receiver `to`. All routes are tried."""

    to: Identifier
    rules: tuple[AlertRule, ...] = Field(default=(), description="Empty: all.")
    teams: tuple[Identifier, ...] = Field(
        default=(), description="Alerts of these teams' jobs; empty: all, and the cluster's."
    )
    severity: Severity = Field(default=Severity.INFO, description="This one, and worse.")

    def takes(self, rule: AlertRule, severity: Severity, team: str) -> bool:
        """Whether an alert goes this way."""
        return (
            (not self.rules or rule in self.rules)
            and (not self.teams or team in self.teams)
            and _ORDER.index(severity) >= _ORDER.index(self.severity)
        )


@dataclass(frozen=True, slots=True)
class Receivers:
    """Routes, and the receivers by name with the teams that may use them (empty: all)."""

    routes: tuple[Route, ...] = ()
    teams: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def of_alert(self, rule: AlertRule, severity: Severity, team: str) -> tuple[str, ...]:
        """The receivers of an alert, each once."""
        found = [one.to for one in self.routes if one.takes(rule, severity, team)]
        return tuple(dict.fromkeys(found))

    def problem(self, target: str, team: str) -> str | None:
        """Why a job of this team cannot notify this receiver; None: it can."""
        allowed = self.teams.get(target)
        if allowed is None or (allowed and team not in allowed):
            return f"the service alerts has no receiver '{target}' for team '{team}'"
        return None
