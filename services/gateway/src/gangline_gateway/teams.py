"""Teams as REST answers: limits and charges from quota, GPUs in use from the live model."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from gangline_gateway.live import Live
from gangline_quota.core.budgets import own_spent_us
from gangline_quota.core.state import State
from gangline_schemas import gpu_time
from gangline_schemas.api.cluster import Team
from gangline_schemas.team_usage import team_usage
from gangline_schemas.teams import rolled_up


def teams(live: Live, quota: State, now: datetime, visible: frozenset[str] | None) -> list[Team]:
    """Teams in the order of their tree; each with the GPUs of itself and the teams below it.

    Cost: O(active jobs + months in which teams used GPUs).
    """
    month, active = gpu_time.month_of(now), live.active()
    running = rolled_up(quota.teams, Counter(job.team for job in active if job.nodes))
    pending = rolled_up(quota.teams, Counter(job.team for job in active if not job.nodes))
    total: Counter[str] = Counter()
    for (team, _), amount in quota.spent_us.items():
        total[team] += amount
    used = team_usage(quota.teams, live.used_gpus(), own_spent_us(quota, now), total)
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
        )
        for team in used
        if visible is None or team.config.team in visible
    ]
