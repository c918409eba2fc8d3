"""The data of champions: which snapshots are compared, and which data are too old."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from gangline_registry.core.model import (
    CompareProfiles,
    Profiled,
    Registered,
    Watch,
    alias_key,
    model_key,
)
from gangline_registry.core.state import RegistryPlan, RegistryState, data_key
from gangline_schemas.data_use import dataset_of
from gangline_schemas.events.registry import DataAged, ProfileNoted
from gangline_schemas.gate_file import DataRules, DriftLimits, Gate


def newest_profiles(state: RegistryState) -> dict[str, str]:
    """The key of the newest profile of each data set, by team/dataset. Cost: all profiles."""
    found: dict[str, str] = {}
    for key, one in state.profiles.items():
        _note(state, found, key, one)
    return found


def note_newest(state: RegistryState, soft: Watch, event: ProfileNoted) -> None:
    """Note a profile that came. Nothing before the first look at all of them."""
    if soft.newest is not None:
        key = f"{event.team}/{event.snapshot}"
        _note(state, soft.newest, key, state.profiles[key])
        if len(soft.newest) > 2 * len(state.profiles):  # most were forgotten
            soft.newest = newest_profiles(state)


def _note(state: RegistryState, newest: dict[str, str], key: str, one: Profiled) -> None:
    """Note a profile, unless data that were made later are known: news may come late, or twice."""
    place = _dataset_key(one.team, one.snapshot)
    held = state.profiles.get(newest.get(place, ""))
    if held is None or _made_at(one) >= _made_at(held):
        newest[place] = key


def _made_at(one: Profiled) -> datetime:
    """When data were made, as their sender says; never after their profile came."""
    return min(one.profile.made_at, one.at)


def _dataset_key(team: str, snapshot: str) -> str:
    return f"{team}/{dataset_of(snapshot)}"


def drift_watched(state: RegistryState, model: str) -> tuple[Gate, DataRules, DriftLimits] | None:
    """The gate, rules and limits of a model, by its key; None: its data are not watched."""
    gated = state.models.get(model)
    rules = None if gated is None else gated.gate.training_data
    if gated is None or rules is None or rules.drift is None:
        return None
    return gated.gate, rules, rules.drift


def of_model(
    state: RegistryState, team: str, model: str, newest: Mapping[str, str]
) -> Iterator[CompareProfiles]:
    """The comparisons of profiles that a model's state asks for: the newest of each data set.

    `newest`: as `newest_profiles` gives it.
    """
    found = drift_watched(state, model_key(team, model))
    if found is None:
        return
    gate, rules, limits = found
    for alias in gate.aliases:
        champion = _champion(state, team, model, alias)
        if champion is None or champion.snapshot is None:
            continue
        trained = state.profiles.get(f"{team}/{champion.snapshot}")
        if trained is None:
            continue
        for dataset in dict.fromkeys(rules.datasets or (dataset_of(champion.snapshot),)):
            one = state.profiles.get(newest.get(f"{team}/{dataset}", ""))
            if one is None or one.snapshot == champion.snapshot:
                continue
            judged = state.data.get(data_key(team, model, alias, dataset))
            pair = (champion.version, champion.snapshot, one.snapshot)
            if judged is None or (judged.version, judged.baseline, judged.snapshot) != pair:
                yield CompareProfiles(team, model, alias, champion.version, trained, one, limits)


def effect_key(one: CompareProfiles) -> str:
    """The key of a comparison; each try adds its number."""
    key = alias_key(one.team, one.model, one.alias)
    return f"drift:{key}:{one.version}:{one.baseline.snapshot}:{one.snapshot.snapshot}"


def age(plan: RegistryPlan) -> None:
    """Say once of each champion that its data are too old."""
    for gated in list(plan.state.models.values()):
        gate = gated.gate
        rules = gate.training_data
        if rules is None or rules.max_age_days is None:
            continue
        for alias in gate.aliases:
            champion = _champion(plan.state, gate.team, gate.model, alias)
            if champion is None or champion.snapshot is None:
                continue
            trained = plan.state.profiles.get(f"{gate.team}/{champion.snapshot}")
            key = alias_key(gate.team, gate.model, alias)
            if trained is None or plan.state.aged.get(key) == champion.version:
                continue
            if plan.now - trained.profile.made_at > timedelta(days=rules.max_age_days):
                aged = DataAged(
                    team=gate.team, model=gate.model, alias=alias, version=champion.version,
                    snapshot=champion.snapshot, made_at=trained.profile.made_at,
                    limit_days=rules.max_age_days,
                )  # fmt: skip
                plan.add(gate.model, aged)


def _champion(state: RegistryState, team: str, model: str, alias: str) -> Registered | None:
    pointer = state.aliases[alias_key(team, model, alias)]
    return state.versions.get(f"{team}/{model}/{pointer.version}")
