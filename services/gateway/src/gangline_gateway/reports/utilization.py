"""The report `utilization`: the cluster's and each team's use over a period. Pure."""

from __future__ import annotations

from gangline_gateway.reports.arithmetic import (
    cost_allocated,
    cpu_hours_allocated,
    gpu_hours_allocated,
    gpu_hours_pending,
    gpu_hours_up,
    gpus_allocated,
    gpus_by_part,
    gpus_pending,
    gpus_up,
    mean_busy,
    mean_mfu,
    ratio,
)
from gangline_gateway.reports.facts import HOUR_S, Facts
from gangline_schemas.api.reports import (
    ClusterUse,
    TeamUse,
    UtilizationReport,
    UtilizationStep,
    UtilizationSteps,
)


def utilization(facts: Facts, teams: frozenset[str] | None, parts: int = 0) -> UtilizationReport:
    """The report for a caller who sees these teams (None: all), with GPUs in so many parts."""
    cluster, seen = cluster_use(facts), facts.of(teams)
    return UtilizationReport(
        since=facts.period.since,
        until=facts.period.until,
        cluster=cluster,
        teams=[team_use(team, own, cluster, parts) for team, own in seen.by_team().items()],
        mfu=mean_mfu(seen.mfu),
        gpus_pending=gpus_pending(seen.jobs),
        gpu_hours_pending=gpu_hours_pending(seen.jobs, facts.period),
    )


def over_time(facts: Facts, steps: int, teams: frozenset[str] | None) -> UtilizationSteps:
    """GPUs that were up and allocated in each of so many steps of equal length."""
    period = facts.period
    allocated = gpus_by_part(facts.jobs, period, steps)
    own = allocated if teams is None else gpus_by_part(facts.of(teams).jobs, period, steps)
    return UtilizationSteps(
        since=period.since,
        until=period.until,
        steps=[
            UtilizationStep(
                since=step.since,
                gpus_total=gpu_hours_up(facts.nodes, step) * HOUR_S / step.length_s,
                gpus_allocated=allocated[index],
                gpus_own=own[index],
            )
            for index, step in enumerate(period.parts(steps))
        ],
    )


def cluster_use(facts: Facts) -> ClusterUse:
    """All nodes and all teams' gangs: `facts` must have all teams."""
    hours = facts.period.length_s / HOUR_S
    total = gpu_hours_up(facts.nodes, facts.period)
    allocated = gpu_hours_allocated(facts.jobs, facts.period)
    return ClusterUse(
        gpus_total=gpus_up(facts.nodes),
        gpus_allocated=gpus_allocated(facts.jobs),
        gpus_total_mean=total / hours,
        gpus_allocated_mean=allocated / hours,
        gpu_hours_total=total,
        gpu_hours_allocated=allocated,
        cpu_hours_allocated=cpu_hours_allocated(facts.jobs, facts.period),
        cost=cost_allocated(facts.jobs, facts.period),
        utilization=ratio(allocated, total),
        gpu_utilization=facts.busy_share,
    )


def team_use(team: str, own: Facts, cluster: ClusterUse, parts: int = 0) -> TeamUse:
    """One team's row, with the teams below it."""
    quota = own.quotas[0] if own.quotas else None
    hours = own.period.length_s / HOUR_S
    allocated = gpu_hours_allocated(own.jobs, own.period)
    share = 0.0
    if quota is not None:
        share = float(quota.gpu_guarantee) or min(quota.gpu_limit, cluster.gpus_total_mean)
    return TeamUse(
        team=team,
        parent=quota.parent if quota else None,
        gpu_limit=quota.gpu_limit if quota else None,
        gpu_guarantee=quota.gpu_guarantee if quota else None,
        borrow_limit=quota.borrow_limit if quota else None,
        gpus_allocated=gpus_allocated(own.jobs),
        gpus_allocated_mean=allocated / hours,
        gpu_hours_allocated=allocated,
        cpu_hours_allocated=cpu_hours_allocated(own.jobs, own.period),
        cost=cost_allocated(own.jobs, own.period),
        gpus_share=share,
        utilization=ratio(allocated, share * hours),
        gpu_utilization=mean_busy(own.gpu_use),
        mfu=mean_mfu(own.mfu),
        gpus_pending=gpus_pending(own.jobs),
        gpu_hours_pending=gpu_hours_pending(own.jobs, own.period),
        gpus_by_part=gpus_by_part(own.jobs, own.period, parts),
    )
