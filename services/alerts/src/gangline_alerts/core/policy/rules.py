"""The rules and their thresholds, as the file of alerts has them; the defaults are the mission's.

A rule is one condition with a threshold. A condition over measurements of a run must hold for
`for_s` before the alert is raised, and must not hold for `clear_s` before it is resolved. Counts
are over the last 24 hours, hour by hour.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gangline_schemas.alerts import AlertRule, Severity
from gangline_schemas.base import Model
from gangline_schemas.limits import Count, Few, Gpus, Priority

Share = Annotated[float, Field(gt=0, lt=1)]
Spell = Annotated[float, Field(ge=0, le=86_400)]


class Rule(Model):
    """The fields of every rule."""

    enabled: bool = True
    severity: Severity = Severity.WARNING


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
    for_s: Spell = 600


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


class Rules(Model):
    """All rules. A rule that the file leaves out has its defaults."""

    cluster_utilization: ClusterUtilization = ClusterUtilization()
    queue_wait: QueueWait = QueueWait()
    low_mfu: LargeJobMfu = LargeJobMfu()
    failed_saves: FailedSaves = FailedSaves()
    node_failures: NodeFailures = NodeFailures()
    failed_jobs: FailedJobs = FailedJobs()
    data_loading: DataLoading = DataLoading()
    gpu_activity: GpuActivity = GpuActivity()

    def of(self, name: AlertRule) -> Rule:
        """The rule of this name."""
        rule: Rule = getattr(self, name.value.replace("-", "_"))
        return rule
