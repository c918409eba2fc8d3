"""The GPUs and spent time of each team, over the tree: the read model of quota. Pure.

A team's numbers are its own and those of all teams below it, as its limits count them. Cost: the
teams times their depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangline_schemas.gpu_time import budget_us
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import Teams, rolled_up, walk


@dataclass(frozen=True, slots=True)
class TeamUsage:
    """One team with all below it. `depth` is 0 at a root; `month_us` is this UTC month's."""

    config: TeamConfig
    depth: int
    allocated_gpus: int
    month_us: int
    total_us: int

    @property
    def borrowed_gpus(self) -> int:
        """GPUs that it has above its limit."""
        return max(0, self.allocated_gpus - self.config.gpu_limit)

    @property
    def out_of_budget(self) -> bool:
        """Whether this month's GPU-hours are spent."""
        most = self.config.gpu_hours_per_month
        return most is not None and self.month_us >= budget_us(most)


def team_usage(
    teams: Teams,
    allocated_gpus: Mapping[str, int],
    month_us: Mapping[str, int],
    total_us: Mapping[str, int],
) -> list[TeamUsage]:
    """Parents before children, siblings by name.

    The mappings give each team's own, without those below; unknown teams are left out.
    """
    gpus, month, total = (rolled_up(teams, own) for own in (allocated_gpus, month_us, total_us))
    return [
        TeamUsage(teams[name], depth, gpus[name], month[name], total[name])
        for name, depth in walk({name: config.parent for name, config in teams.items()})
    ]
