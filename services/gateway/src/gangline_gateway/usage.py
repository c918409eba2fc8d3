"""What teams hold and used, as the live model knows it. Pure."""

from __future__ import annotations

from datetime import datetime

from gangline_gateway.live import Live
from gangline_schemas import gpu_time
from gangline_schemas.team_usage import TeamUsage, team_usage


def usage(live: Live, now: datetime) -> list[TeamUsage]:
    """What each team and those below it hold now, and used this month. Cost: O(active jobs)."""
    month = gpu_time.month_of(now)
    spent = {name: team.month_us if team.month == month else 0 for name, team in live.teams.items()}
    for job in live.active():
        if job.nodes and job.allocated_at is not None and job.team in spent:
            spent[job.team] += gpu_time.in_month(job.allocated_gpus, job.allocated_at, now)
    total = {name: team.gpu_us for name, team in live.teams.items()}
    configs = {name: team.config for name, team in live.teams.items()}
    return team_usage(configs, live.used_gpus(), spent, total)
