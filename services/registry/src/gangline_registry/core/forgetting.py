"""The state forgets the oldest versions and profiles that nothing needs."""

from __future__ import annotations

from collections.abc import Iterable

from gangline_registry.core.model import Registered, model_key, version_key
from gangline_registry.core.state import RegistryState, needed_versions, versions_of

VERSIONS_KEPT = 200
"""Of one model; those that an alias points to, or may roll back to, are kept besides."""
FREE_VERSIONS_KEPT = 5000
"""Of one team's models without a gate, all together."""
PROFILES_KEPT = 2000
"""Of one team, and a few more; those of the data of champions are kept besides."""


def forget_versions(state: RegistryState, team: str, model: str) -> None:
    """After a new version of a model. Cost: the names of all models; above the limit, versions."""
    free = [
        name for name in state.numbered if name.startswith(f"{team}/") and name not in state.models
    ]
    over = sum(len(state.numbered[name]) for name in free) - FREE_VERSIONS_KEPT
    if over > 0:
        held = [one for name in free for one in versions_of(state, *name.split("/"))]
        _drop_versions(state, sorted(held, key=lambda one: one.at)[:over])
    if len(state.numbered.get(model_key(team, model), ())) <= VERSIONS_KEPT:
        return
    own = versions_of(state, team, model)
    needed = needed_versions(state, team, model)
    for promotion in state.promotions.values():
        if (promotion.team, promotion.model) == (team, model):
            needed.add(promotion.version)
    old = own[: len(own) - VERSIONS_KEPT]
    _drop_versions(state, [one for one in old if one.version not in needed])


def _drop_versions(state: RegistryState, gone: Iterable[Registered]) -> None:
    numbers: dict[str, set[int]] = {}
    for one in gone:
        del state.versions[version_key(one.team, one.model, one.version)]
        numbers.setdefault(model_key(one.team, one.model), set()).add(one.version)
    for name, dropped in numbers.items():
        left = tuple(number for number in state.numbered[name] if number not in dropped)
        state.numbered[name] = left
        if not left:
            del state.numbered[name]


def forget_profiles(state: RegistryState) -> None:
    """After a new profile. Cost: all profiles, for one of many new ones."""
    if len(state.profiles) % max(1, PROFILES_KEPT // 32):
        return
    teams: dict[str, list[str]] = {}
    for key, one in state.profiles.items():
        teams.setdefault(one.team, []).append(key)
    for team, own in teams.items():
        if len(own) <= PROFILES_KEPT:
            continue
        champions = (
            state.versions.get(version_key(team, name.split("/")[1], pointer.version))
            for name, pointer in state.aliases.items()
            if name.startswith(f"{team}/")
        )
        needed = {f"{team}/{one.snapshot}" for one in champions if one is not None}
        for key in own[: len(own) - PROFILES_KEPT]:
            if key not in needed:
                del state.profiles[key]
