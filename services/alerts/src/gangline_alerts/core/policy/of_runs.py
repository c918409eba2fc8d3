"""Rules over measurements of runs: MFU, loading of data, activity of the GPUs.

A subject without a finding was not measured lately, which says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gangline_alerts.core.model import Finding, Job, RunReading, Watch
from gangline_alerts.core.policy.causes import ADVICE, likely
from gangline_alerts.core.policy.rules import DataLoading, GpuActivity, LargeJobMfu, Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.state import AlertState
from gangline_schemas.alerts import AlertRule


def findings(
    state: AlertState, soft: Watch, rules: Rules, timing: Timing, now: datetime
) -> Iterator[Finding]:
    """The measured values of all gangs. Cost: the runs that report, and their nodes."""
    for job_id, run in soft.runs.items():
        job = state.jobs.get(job_id)
        if job is None or not job.places or not _fresh(run, job, timing, now):
            continue
        own, large = rules.of_team(job.team), watches(AlertRule.LOW_MFU, rules, job)
        if own.low_mfu.enabled and large and run.mfu is not None:
            yield _mfu(own.low_mfu, job_id, job, run.mfu)
        if own.data_loading.enabled and run.data_wait_share is not None:
            yield _loading(own.data_loading, job_id, job, run.data_wait_share)
        if own.gpu_activity.enabled and job.held:
            yield from _activity(own.gpu_activity, job_id, job, soft, timing, now)


def watches(rule: AlertRule, rules: Rules, job: Job) -> bool:
    """Whether a rule over measurements applies to a job as it is placed now."""
    least = rules.of_team(job.team).low_mfu.gpus_at_least if rule is AlertRule.LOW_MFU else 1
    return job.held >= least


def _fresh(run: RunReading, job: Job, timing: Timing, now: datetime) -> bool:
    age_s = (now - run.at).total_seconds()
    return not run.stalled and run.attempt == job.attempt and age_s <= timing.stale_s


def _mfu(rule: LargeJobMfu, job_id: str, job: Job, mfu: float) -> Finding:
    return Finding(
        AlertRule.LOW_MFU,
        job_id,
        job.team,
        rule.severity,
        value=mfu,
        threshold=rule.below,
        holds=mfu < rule.below,
        message=f"job {job.name} of team {job.team} has an MFU of {mfu:.0%} on {job.held} GPUs",
    )


def _loading(rule: DataLoading, job_id: str, job: Job, waits: float) -> Finding:
    return Finding(
        AlertRule.DATA_LOADING,
        job_id,
        job.team,
        rule.severity,
        value=1 - waits,
        threshold=rule.below,
        holds=1 - waits < rule.below,
        message=f"job {job.name} of team {job.team} waits for data in {waits:.0%} of its time",
    )


def _activity(
    rule: GpuActivity, job_id: str, job: Job, soft: Watch, timing: Timing, now: datetime
) -> Iterator[Finding]:
    values, cpus = [], []
    for place in job.places:
        node = soft.nodes.get(place.node_id)
        if node is None or (now - node.at).total_seconds() > timing.stale_s:
            return
        known = (node.activity(index) for index in place.gpus)
        values += [value for value in known if value is not None]
        if node.cpu_percent is not None:
            cpus.append(node.cpu_percent)
    if len(values) < job.held:
        return
    mean = sum(values) / len(values)
    cause = likely(soft.runs.get(job_id), max(cpus, default=None))
    advice = f": {ADVICE[cause]}" if cause is not None else ""
    yield Finding(
        AlertRule.GPU_ACTIVITY,
        job_id,
        job.team,
        rule.severity,
        value=mean,
        threshold=rule.below,
        holds=mean < rule.below,
        message=f"the GPUs of job {job.name} of team {job.team} are {mean:.0%} busy{advice}",
        cause=cause,
    )
