"""The GPUs that each team is due: its guarantee, and its part of the surplus by weight.

The GPUs that nodes have beyond what teams use of their guarantees are the surplus. Siblings share
it by weight. A team gets no more than it has and waits for, nor than it may have. The others
share what it leaves, by their weights again. A team of weight 0 gets none. The teams below a team
share what that one is due. Source: max-min fairness with weights, filled from the bottom.

Cost: O(teams + groups of pending jobs); nothing unless a team lets its surplus be reclaimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gangline_scheduler.core.allocate import next_demand
from gangline_scheduler.core.policy.eligible import fits_empty_cluster
from gangline_scheduler.core.policy.victims import Guarantees
from gangline_scheduler.core.state import State
from gangline_scheduler.core.usage import line_of
from gangline_schemas.team_limits import TeamConfig

RECLAIM = "reclaim_by_weight"
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Claim:
    """A team among its siblings. `wants`: GPUs that it and those below it have and wait for."""

    config: TeamConfig
    wants: int

    @property
    def base(self) -> int:
        """The GPUs of its guarantee that it uses."""
        return min(self.config.gpu_guarantee, self.wants)


def gives_back(state: State, team: str) -> bool:
    """Whether what the team has above its part may be taken: the nearest team that says so."""
    settings = (state.teams[name].config.surplus for name in line_of(state.teams, team))
    return next((one for one in settings if one is not None), None) == RECLAIM


def parts(state: State) -> dict[str, int]:
    """GPUs that each team is due; nothing when no team lets its surplus be reclaimed."""
    configs = {name: team.config for name, team in state.teams.items()}
    if all(config.surplus != RECLAIM for config in configs.values()):
        return {}
    wants = _wants(state)
    below: dict[str | None, list[Claim]] = {}
    for name in sorted(configs):
        config = configs[name]
        above = config.parent if config.parent in configs else None
        below.setdefault(above, []).append(Claim(config, min(config.ceiling, wants[name])))
    found: dict[str, int] = {}
    todo: list[tuple[str | None, int]] = [(None, state.empty.total())]
    for above, gpus in todo:
        shares = divided(gpus, below.get(above, []))
        found |= shares
        todo += shares.items()
    return found


def divided(gpus: int, claims: Sequence[Claim]) -> dict[str, int]:
    """So many GPUs among siblings: what each uses of its guarantee, then the rest by weight."""
    given = {claim.config.team: float(claim.base) for claim in claims}
    left = gpus - sum(given.values())
    hungry = [claim for claim in claims if claim.config.weight and claim.wants > claim.base]
    while left > 0 and hungry:
        each = left / sum(claim.config.weight for claim in hungry)
        full = [
            claim
            for claim in hungry
            if claim.wants - given[claim.config.team] <= each * claim.config.weight
        ]
        for claim in full or hungry:
            name = claim.config.team
            more = claim.wants - given[name] if full else each * claim.config.weight
            given[name] += more
            left -= more
        hungry = [claim for claim in hungry if claim not in full] if full else []
    return {name: int(part + _EPSILON) for name, part in given.items()}


def _wants(state: State) -> dict[str, int]:
    """GPUs that each team has and waits for, with those of the teams below it."""
    found = {name: state.used.get(name, 0) for name in state.teams}
    for places in state.queue.groups().values():
        first = state.jobs[places[0][-1]]
        if first.team in found and fits_empty_cluster(state, next_demand(first, state)):
            more = sum(state.jobs[place[-1]].fewest for place in places)
            for name in line_of(state.teams, first.team):
                found[name] += more
    return found


class Parts(Guarantees):
    """GPUs that each team may still lose: no team is taken below its part, nor its guarantee."""

    def __init__(
        self,
        state: State,
        leaving: Mapping[str, int],
        inside: Iterable[str],
        parts: Mapping[str, int],
    ) -> None:
        inside = frozenset(inside)
        super().__init__(state, leaving, inside)
        self._spare = {
            name: state.used.get(name, 0) - leaving.get(name, 0) - parts[name]
            for name in state.teams
            if name not in inside
        }


def others_keep(
    state: State, leaving: Mapping[str, int], inside: Iterable[str], parts: Mapping[str, int]
) -> Guarantees:
    """GPUs that teams may lose if each keeps its part where parts are due, else its guarantee."""
    return Parts(state, leaving, inside, parts) if parts else Guarantees(state, leaving, inside)
