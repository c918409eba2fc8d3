"""Teams are configured one at a time or many at once, and only if their tree stays sound.

A request that would break the tree is refused as a whole, with every problem that it would add. So
a tree that an earlier version accepted can still be repaired step by step. An entry of the file of
teams counts only where it differs from the last reading of the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gangline_bus.decision import Decision
from gangline_quota.core.state import TEAMS_FILE_USER, RequestRef, State
from gangline_schemas.events.admin import TeamConfigureRequested, TeamsConfigureRequested
from gangline_schemas.events.quota import RequestRefused, TeamConfigured
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import problems, walk

_MAX_PROBLEMS = 5


def configured(
    state: State, request: TeamConfigureRequested | TeamsConfigureRequested, ref: RequestRef
) -> list[Decision]:
    """One event per team that changes, parents before children; or one refusal for all."""
    wanted: tuple[TeamConfig, ...]
    match request:
        case TeamConfigureRequested(config=config):
            wanted, target = (config,), config.team
        case TeamsConfigureRequested(teams=wanted, user=target):
            pass
    by_file = request.user == TEAMS_FILE_USER
    if ref.key in state.requests and not by_file:
        return []
    known = state.from_file if by_file else state.teams
    changes = [config for config in wanted if config != known.get(config.team)]
    if not changes:
        return []
    reason = _breaks(state, changes)
    if reason is not None:
        refused = RequestRefused(
            request=request.type,
            target=target,
            reason=reason,
            user=request.user,
            **ref._asdict(),
        )
        return [Decision(target, refused)]
    changed = {config.team: config for config in changes}
    after = state.teams | changed
    return [
        Decision(name, TeamConfigured(config=after[name], user=request.user, **ref._asdict()))
        for name, _ in walk({name: config.parent for name, config in after.items()})
        if name in changed
    ]


def _breaks(state: State, changes: Sequence[TeamConfig]) -> str | None:
    counts = Counter(config.team for config in changes)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        return f"team '{twice[0]}' stands twice in the request; merge the two entries"
    after = state.teams | {config.team: config for config in changes}
    before = set(problems(state.teams.values()))
    added = [str(item) for item in problems(after.values()) if item not in before]
    if not added:
        return None
    more = f"; and {len(added) - _MAX_PROBLEMS} more" if len(added) > _MAX_PROBLEMS else ""
    return f"the tree of teams would be broken: {'; '.join(added[:_MAX_PROBLEMS])}{more}"
