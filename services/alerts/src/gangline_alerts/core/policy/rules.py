"""The rules, their thresholds and defaults, as the file of alerts has them.

A rule is one condition with a threshold. A condition over measurements of a run must hold for
`for_s` before the alert is raised, and must not hold for `clear_s` before it is resolved. Counts
are over the last 24 hours, hour by hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator

from gangline_schemas.alerts import AlertRule, Severity
from gangline_schemas.base import Identifier, Model
from gangline_schemas.limits import Count, Few, Gpus, Priority

Share = Annotated[float, Field(gt=0, lt=1)]
Spell = Annotated[float, Field(ge=0, le=86_400)]


class Rule(Model):
    """The fields of every rule."""

    enabled: bool = True
    severity: Severity = Severity.WARNING
    levels: dict[Identifier, Self] = Field(
        default_factory=dict,
        max_length=8,
        description="Further thresholds by name, each with alerts of its own. A field that is left "
        "out is that of the rule.",
    )

    @field_validator("levels")
    @classmethod
    def _levels_have_none(cls, value: dict[str, Self]) -> dict[str, Self]:
        if any(level.levels for level in value.values()):
            raise ValueError("a level has no levels of its own")
        return value

    def level(self, name: str) -> Self:
        """The rule with the fields of this level. Without such a level it is off."""
        own = self.levels.get(name)
        if own is None or not self.enabled:
            return self.model_copy(update={"enabled": False, "levels": {}})
        return self.model_copy(update={**_given(own), "levels": {}})


class MeasuredRule(Rule):
    """A rule over measurements of a run."""

    for_s: Spell = Field(default=300, description="So long the condition must hold.")
    clear_s: Spell = Field(default=60, description="So long it must not, to resolve the alert.")


class ClusterUtilization(Rule):
    """Too few of the GPUs that nodes offer are allocated."""

    below: Share = Field(default=0.6, description="The share of allocated GPUs.")
    for_s: Spell = Field(default=3600, description="The whole time; at most a day.")
    gpus_at_least: Gpus = Field(default=16, description="Smaller clusters raise nothing.")


class QueueWait(Rule):
    """A job waits too long for GPUs."""

    above_s: Annotated[float, Field(gt=0, le=30 * 86_400)] = Field(
        default=7200, description="Without the time in which this service was away."
    )
    priority_below: Priority = Field(default=50, description="Only jobs more urgent than that.")


class LargeJobMfu(MeasuredRule):
    """A large job computes far below what its GPUs can do."""

    below: Share = Field(default=0.3, description="The metric `mfu` of the run.")
    gpus_at_least: Gpus = Field(default=128, description="Only gangs of so many GPUs.")
    for_s: Spell = Field(default=600, description="So long the condition must hold.")


class FailedSaves(Rule):
    """Too many saves of live gangs are never committed."""

    above: Share = Field(default=0.01, description="Of all saves in 24 hours.")
    at_least: Count = Field(default=100, description="Saves; fewer say nothing.")
    severity: Severity = Severity.CRITICAL


class NodeFailures(Rule):
    """Too many nodes fail."""

    above: Few = Field(default=2, description="In 24 hours.")


class FailedJobs(Rule):
    """Too many jobs fail. Cancelled ones do not count."""

    above: Share = Field(default=0.05, description="Of the jobs that ended in 24 hours.")
    at_least: Count = Field(default=20, description="Jobs; fewer say nothing.")


class DataLoading(MeasuredRule):
    """Data comes slower than the GPUs compute."""

    below: Share = Field(
        default=0.8,
        description="The speed of loading against that of computing: the share of a step's time "
        "that does not wait for data.",
    )


class GpuActivity(MeasuredRule):
    """The GPUs of a gang are not busy; the alert names the likely cause."""

    below: Share = Field(default=0.8, description="The mean activity of the gang's GPUs.")


class DataDrift(Rule):
    """Newer data differ from those that a champion was trained on."""

    above: Few = Field(default=0, description="Columns that moved, by the limits of the gate.")


class DataAge(Rule):
    """The data of a champion are older than its gate allows."""

    over_days: Annotated[float, Field(ge=0, le=36_500)] = Field(
        default=0, description="Days beyond the gate's `max_age_days`."
    )


_CHOOSES_JOBS = {AlertRule.QUEUE_WAIT: "priority_below", AlertRule.LOW_MFU: "gpus_at_least"}
"""The fields that say which jobs a rule is about."""


def _given(rule: Rule) -> dict[str, Any]:
    return {field: getattr(rule, field) for field in rule.model_fields_set}


def by_rule(value: Any) -> Any:
    """Rules are named as in alerts: queue-wait."""
    if not isinstance(value, dict):
        return value
    return {str(name).replace("-", "_"): rule for name, rule in value.items()}


class TeamRules(Model):
    """Rules about the jobs and models of one team.

    A field that is left out is that of the general rule.
    """

    queue_wait: QueueWait | None = None
    low_mfu: LargeJobMfu | None = None
    data_loading: DataLoading | None = None
    gpu_activity: GpuActivity | None = None
    data_drift: DataDrift | None = None
    data_age: DataAge | None = None

    def given(self) -> dict[str, Rule]:
        """The rules that are here, by field."""
        found = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: rule for name, rule in found.items() if rule is not None}


class Rules(Model):
    """All rules. A rule that the file leaves out has its defaults; `teams` have their own."""

    cluster_utilization: ClusterUtilization = ClusterUtilization()
    queue_wait: QueueWait = QueueWait()
    low_mfu: LargeJobMfu = LargeJobMfu()
    failed_saves: FailedSaves = FailedSaves()
    node_failures: NodeFailures = NodeFailures()
    failed_jobs: FailedJobs = FailedJobs()
    data_loading: DataLoading = DataLoading()
    gpu_activity: GpuActivity = GpuActivity()
    data_drift: DataDrift = DataDrift()
    data_age: DataAge = DataAge()
    teams: dict[Identifier, Annotated[TeamRules, BeforeValidator(by_rule)]] = Field(
        default_factory=dict, max_length=1000
    )
    _of_teams: dict[str, Rules] = PrivateAttr(default_factory=dict)
    _levels: dict[str, Rules] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: object, /) -> None:
        """The rules of each team, as decisions ask for them."""
        super().model_post_init(context)
        for team, own in self.teams.items():
            rules = {
                name: getattr(self, name).model_copy(update=_given(rule))
                for name, rule in own.given().items()
            }
            self._of_teams[team] = self.model_copy(update={**rules, "teams": {}})
        self._levels[""] = self
        sets = (self, *self._of_teams.values())
        names = {name for each in sets for rule in each.all() for name in rule.levels}
        for name in sorted(names):
            self._levels[name] = self._level(name)

    def _level(self, name: str) -> Rules:
        rules: dict[str, Any] = {
            rule.value.replace("-", "_"): self.of(rule).level(name) for rule in AlertRule
        }
        teams = {}
        for team, own in self.teams.items():
            found = {field: getattr(self.of_team(team), field).level(name) for field in own.given()}
            teams[team] = TeamRules(
                **{field: rule.model_copy(update=dict(rule)) for field, rule in found.items()}
            )
        return Rules(**rules, teams=teams)

    def all(self) -> list[Rule]:
        """The rules, without those of teams."""
        return [self.of(name) for name in AlertRule]

    def levels(self) -> Mapping[str, Rules]:
        """The rules with the thresholds of each level; "" is without levels."""
        return self._levels

    def has_own_jobs(self, name: AlertRule, level: str, team: str) -> bool:
        """Whether a level is about other jobs of a team than its rule, so its values differ."""
        field = _CHOOSES_JOBS.get(name)
        rule, own = (rules.of_team(team).of(name) for rules in (self, self._levels[level]))
        return field is not None and own.enabled and getattr(rule, field) != getattr(own, field)

    def of_team(self, team: str) -> Rules:
        """The rules that hold for a team's jobs."""
        return self._of_teams[team] if team in self.teams else self

    def of(self, name: AlertRule) -> Rule:
        """The rule of this name."""
        rule: Rule = getattr(self, name.value.replace("-", "_"))
        return rule
