"""Teams as REST answers: limits and charges from quota, GPUs in use from the scheduler."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from gangline_gateway.live_view import LiveView
from gangline_gateway.quota_state import state_of
from gangline_quota.core.budgets import out_of_cpu_budget, own_spent_us, spent_cpu_us
from gangline_schemas import gpu_time
from gangline_schemas.api.cluster import Team
from gangline_schemas.team_usage import team_usage
from gangline_schemas.teams import rolled_up


def teams(live: LiveView, now: datetime, visible: frozenset[str] | None) -> list[Team]:
    """Teams in the order of their tree; each with the GPUs of itself and the teams below it.

    Cost: O(active jobs + teams). Raises NoStateError.
    """
    quota, month = state_of(live.quota), gpu_time.month_of(now)
    gangs: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for job in live.active:
        gangs[job.job_id in live.running][job.team] += 1
    running, pending = rolled_up(quota.teams, gangs[True]), rolled_up(quota.teams, gangs[False])
    total: Counter[str] = Counter()
    for (team, _), amount in quota.spent_us.items():
        total[team] += amount
    cpus = rolled_up(quota.teams, quota.cpus)
    cpu_us = spent_cpu_us(quota, now)
    used = team_usage(quota.teams, live.used_gpus, own_spent_us(quota, now), total)
    return [
        Team(
            **team.config.model_dump(),
            depth=team.depth,
            gpus_used=team.allocated_gpus,
            gpus_borrowed=team.borrowed_gpus,
            jobs_running=running[team.config.team],
            jobs_pending=pending[team.config.team],
            gpu_seconds=gpu_time.seconds(team.total_us),
            month=month,
            gpu_hours_this_month=gpu_time.hours(team.month_us),
            out_of_budget=team.out_of_budget,
            cpus_used=cpus[team.config.team] / 1000,
            cpu_hours_this_month=gpu_time.hours(cpu_us[team.config.team]) / 1000,
            out_of_cpu_budget=out_of_cpu_budget(team.config, cpu_us[team.config.team]),
        )
        for team in used
        if visible is None or team.config.team in visible
    ]
