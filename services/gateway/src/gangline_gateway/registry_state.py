"""Follows the log of the registry: models, versions, promotions and moves for answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from gangline_bus.snapshot import SnapshotStore
from gangline_gateway.followed import Copies, Followed, only_state
from gangline_registry.core.comparing import baseline_of, missing
from gangline_registry.core.decide import RegistryDecider
from gangline_registry.core.model import (
    DataJudgement,
    GatedModel,
    Profiled,
    Registered,
    alias_key,
    model_key,
    version_key,
)
from gangline_registry.core.model import Move as MoveFacts
from gangline_registry.core.model import Promotion as PromotionFacts
from gangline_registry.core.policy.judge import approvers, judge
from gangline_registry.core.snapshot import codec
from gangline_registry.core.state import RegistryState, versions_of
from gangline_schemas.api import models as api
from gangline_schemas.catalog import Topic
from gangline_schemas.data_use import dataset_of
from gangline_schemas.models import Verdict

SHOWN = 50
"""Versions, promotions and moves of one model."""
Name = tuple[str, str]
"""Team and model."""


def followed(store: SnapshotStore | None = None) -> Followed[RegistryState]:
    """The follower of gangline.registry. A copy costs the entries of the state."""
    return Followed(RegistryDecider(), codec(), _copy, store)


def registry_of(copies: Copies[RegistryState]) -> RegistryState:
    """The state of its one partition. Raises NoStateError."""
    return only_state(copies, Topic.REGISTRY)


def _copy(state: RegistryState) -> RegistryState:
    """A copy of what answers read; the other maps are shared and must not be read."""
    return replace(
        state,
        models=dict(state.models),
        versions=dict(state.versions),
        numbered=dict(state.numbered),
        aliases=dict(state.aliases),
        checkpoints=dict(state.checkpoints),
        steps=dict(state.steps),
        promotions=dict(state.promotions),
        judged=dict(state.judged),
        moves=dict(state.moves),
        profiles=dict(state.profiles),
        data=dict(state.data),
        aged=dict(state.aged),
        requests=dict(state.requests),
    )


def names(state: RegistryState, sees: Callable[[str], bool]) -> list[Name]:
    """All models with a gate or a version, by team and name. Cost: the models."""
    found = (key.partition("/") for key in {*state.models, *state.numbered})
    return sorted((team, model) for team, _, model in found if sees(team))


def rows(state: RegistryState, sees: Callable[[str], bool]) -> Iterator[api.ModelRow]:
    """The models as lists show them."""
    waiting = Counter((one.team, one.model) for one in state.promotions.values())
    data = _data(state)
    for name in names(state, sees):
        yield api.ModelRow(**_row(state, name, waiting[name], data))


def _data(state: RegistryState) -> dict[str, list[DataJudgement]]:
    """The judgements of data by alias. Cost: all of them."""
    found: dict[str, list[DataJudgement]] = {}
    for key, judged in state.data.items():
        team, model, alias, _ = key.split("/", 3)
        found.setdefault(alias_key(team, model, alias), []).append(judged)
    return found


def _row(
    state: RegistryState,
    name: Name,
    waiting: int,
    data: Mapping[str, list[DataJudgement]],
) -> dict[str, object]:
    team, model = name
    gated = state.models.get(model_key(team, model))
    versions = state.numbered.get(model_key(team, model), ())
    return {
        "team": team,
        "model": model,
        "aliases": [] if gated is None else [*_aliases(state, gated, data)],
        "has_gate": gated is not None,
        "versions": len(versions),
        "newest_version": max(versions, default=None),
        "waiting": waiting,
    }


def _aliases(
    state: RegistryState, gated: GatedModel, data: Mapping[str, list[DataJudgement]]
) -> Iterator[api.Alias]:
    team, model = gated.gate.team, gated.gate.model
    for alias in gated.gate.aliases:
        key = alias_key(team, model, alias)
        pointer = state.aliases[key]
        moved = [one.found for one in data.get(key, ()) if one.version == pointer.version]
        yield api.Alias(
            alias=alias,
            version=pointer.version,
            since=pointer.since,
            rollback_to=pointer.before[-1] if pointer.before else None,
            drift=sum(moved),
            aged=bool(pointer.version) and state.aged.get(key) == pointer.version,
            data_unknown="" if gated.gate.training_data is None else _unknown(state, gated, alias),
        )


def _unknown(state: RegistryState, gated: GatedModel, alias: str) -> str:
    """Why age and drift of the data of an alias's version are not known; "" if they are."""
    team, model = gated.gate.team, gated.gate.model
    number = state.aliases[alias_key(team, model, alias)].version
    one = state.versions.get(version_key(team, model, number))
    if one is None:
        return ""
    if one.snapshot is None:
        return f"the data of version {number} are not known"
    if f"{team}/{one.snapshot}" not in state.profiles:
        return f"no profile of the data of version {number} is known"
    return ""


def detail(state: RegistryState, name: Name) -> api.ModelDetail:
    """A model with everything about it."""
    team, model = name
    gated = state.models.get(model_key(team, model))
    own = sorted(versions_of(state, team, model), key=lambda one: -one.version)
    waiting = sum((one.team, one.model) == name for one in state.promotions.values())
    return api.ModelDetail(
        **_row(state, name, waiting, _data(state)),
        gate=None if gated is None else gated.gate,
        gate_user="" if gated is None else gated.user,
        gate_since=None if gated is None else gated.since,
        version_list=[version(state, one) for one in own[:SHOWN]],
        promotions=[*promotions(state, name)][:SHOWN],
        moves=[*moves(state, name)][:SHOWN],
        catalogue_behind=state.projected != state.changes,
    )


def version(state: RegistryState, one: Registered) -> api.VersionRow:
    """A version with its evidence."""
    gated = state.models.get(model_key(one.team, one.model))
    aliases = () if gated is None else gated.gate.aliases
    counted = () if gated is None else approvers(gated.gate, one)
    return api.VersionRow(
        version=one.version,
        checkpoint=one.checkpoint,
        snapshot=one.snapshot,
        description=one.description,
        user=one.user,
        registered_at=one.at,
        aliases=[
            alias
            for alias in aliases
            if state.aliases[alias_key(one.team, one.model, alias)].version == one.version
        ],
        evaluations=dict(one.evaluations),
        serving=one.serving,
        approvals=[
            api.ApprovalRow(
                user=each.user, comment=each.comment, at=each.at, counts=each.user in counted
            )
            for each in one.approvals
        ],
        lost=version_key(one.team, one.model, one.version) in state.missing,
    )


def promotions(state: RegistryState, name: Name) -> Iterator[api.Promotion]:
    """A model's promotions that are remembered, the newest first."""
    both = {**state.judged, **state.promotions}
    for number in sorted(both, reverse=True):
        if (both[number].team, both[number].model) == name:
            yield promotion(both[number])


def promotion(one: PromotionFacts) -> api.Promotion:
    """A promotion as answers show it."""
    moved = one.verdict is Verdict.PASS or (
        one.override is not None and one.verdict not in {None, Verdict.VOID}
    )
    return api.Promotion(
        promotion=one.number,
        version=one.version,
        alias=one.alias,
        expected=one.expected,
        baseline=one.baseline,
        user=one.user,
        override=one.override,
        verdict=one.verdict,
        findings=list(one.findings),
        moved=moved,
        begun_at=one.begun_at,
        judged_at=one.judged_at,
    )


def moves(state: RegistryState, name: Name, alias: str | None = None) -> Iterator[api.Move]:
    """A model's moves that are remembered, the newest first."""
    for number in reversed(state.moves):
        one = state.moves[number]
        if (one.team, one.model) == name and alias in {None, one.alias}:
            yield move(one)


def move(one: MoveFacts) -> api.Move:
    """A move as answers show it."""
    return api.Move(
        number=one.number,
        alias=one.alias,
        from_version=one.from_version,
        to_version=one.to_version,
        kind=one.kind,
        by=one.by,
        reason=one.reason,
        promotion=one.evidence,
        at=one.at,
    )


def check(state: RegistryState, candidate: Registered, gated: GatedModel, alias: str) -> api.Check:
    """The verdict on a version now, by the registry's own code."""
    gate = gated.gate
    pointer = state.aliases[alias_key(gate.team, gate.model, alias)]
    number = baseline_of(gate, pointer)
    baseline = state.versions.get(version_key(gate.team, gate.model, number))
    judged = judge(gate, candidate, baseline)
    return api.Check(
        version=candidate.version,
        alias=alias,
        baseline=number,
        verdict=judged.verdict,
        findings=list(judged.findings),
        comparing=len(missing(gate, candidate, baseline)),
    )


def drift(state: RegistryState, gated: GatedModel, alias: str, now: datetime) -> api.Drift:
    """The data of an alias's version."""
    gate = gated.gate
    key = alias_key(gate.team, gate.model, alias)
    pointer = state.aliases[key]
    champion = state.versions.get(version_key(gate.team, gate.model, pointer.version))
    snapshot = None if champion is None else champion.snapshot
    profiled = state.profiles.get(f"{gate.team}/{snapshot}")
    made_at = None if profiled is None else profiled.profile.made_at
    rules = gate.training_data
    checks = [
        api.DataCheck(
            dataset=dataset_of(one.snapshot),
            snapshot=one.snapshot,
            baseline=one.baseline,
            at=one.at,
            found=one.found,
            columns=list(one.columns),
            unknown=one.unknown,
        )
        for name, one in state.data.items()
        if name.startswith(f"{key}/") and one.version == pointer.version
    ]
    return api.Drift(
        alias=alias,
        version=pointer.version,
        snapshot=snapshot,
        profiled=profiled is not None,
        made_at=made_at,
        age_days=None if made_at is None else (now - made_at).total_seconds() / 86_400,
        limit_days=None if rules is None else rules.max_age_days,
        aged=bool(pointer.version) and state.aged.get(key) == pointer.version,
        data_unknown=_unknown(state, gated, alias),
        checks=checks,
    )


def profile(one: Profiled) -> api.ProfileRow:
    """A snapshot with its profile as answers show it."""
    return api.ProfileRow(
        team=one.team,
        snapshot=one.snapshot,
        digest=one.profile.digest,
        rows=one.profile.rows,
        columns=one.profile.columns,
        made_at=one.profile.made_at,
        serving=one.profile.serving,
    )
