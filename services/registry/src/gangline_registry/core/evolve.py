"""The fold: the state after each event of gangline.registry."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gangline_bus.decision import Fold
from gangline_registry.core.forgetting import forget_profiles, forget_versions
from gangline_registry.core.model import (
    Answer,
    Approval,
    DataJudgement,
    Deferred,
    GatedModel,
    Move,
    Pointer,
    Profiled,
    Promotion,
    Registered,
    Registration,
    alias_key,
    comparison_key,
    model_key,
    version_key,
)
from gangline_registry.core.state import (
    NotedCheckpoint,
    RegistryState,
    data_key,
    versions_of,
)
from gangline_schemas.catalog import Topic
from gangline_schemas.data_use import dataset_of
from gangline_schemas.envelope import request_key
from gangline_schemas.events.registry import (
    AliasesProjected,
    AliasMoved,
    AliasRepaired,
    Answering,
    DataAged,
    DriftAbsent,
    DriftFound,
    DriftUnknown,
    EvaluationCompared,
    EvaluationReported,
    GateRemoved,
    GateSet,
    ProfileNoted,
    PromotedGone,
    PromotedNoted,
    PromotionBegun,
    PromotionJudged,
    RegistryDeferred,
    RegistryRefused,
    ServingReported,
    VersionApproved,
    VersionBegun,
    VersionRefused,
    VersionRegistered,
)
from gangline_schemas.memory import forget_old, keep_newest

REQUESTS_KEPT = 2000
MOVES_KEPT = 5000
JUDGED_KEPT = 1000
BASELINES_KEPT = 8
"""Comparisons of one suite of a version: its model has so many aliases at most."""
STEPS_BACK = 50
"""A rollback can lead back so many moves."""
fold: Fold[RegistryState] = Fold(Topic.REGISTRY)
"""How the events of gangline.registry change the state, in place."""


def _answer(state: RegistryState, event: Answering, answer: Answer) -> None:
    if event.request_id:
        key = request_key(event.request_source, event.request_id)
        state.requests.pop(key, None)
        state.requests[key] = answer
        keep_newest(state.requests, REQUESTS_KEPT)


def _of_version(state: RegistryState, event: EvaluationReported | ServingReported | VersionApproved
                | EvaluationCompared) -> tuple[str, Registered]:  # fmt: skip
    key = version_key(event.team, event.model, event.version)
    return key, state.versions[key]


@fold.on(RegistryRefused)
def _(state: RegistryState, event: RegistryRefused, _at: datetime) -> None:
    _answer(state, event, Answer(refused=event.reason))


@fold.on(PromotedNoted)
def _(state: RegistryState, event: PromotedNoted, at: datetime) -> None:
    one = event.checkpoint
    _forget_checkpoint(state, one.job_id, one.step)
    state.checkpoints[f"{one.job_id}/{one.step}"] = NotedCheckpoint(one, at)
    state.steps[one.job_id] = (*state.steps.get(one.job_id, ()), one.step)
    for _, old in forget_old(state.checkpoints, lambda noted: noted.at, at):
        _forget_step(state, old.checkpoint.job_id, old.checkpoint.step)


@fold.on(PromotedGone)
def _(state: RegistryState, event: PromotedGone, _at: datetime) -> None:
    _forget_checkpoint(state, event.job_id, event.step)


def _forget_checkpoint(state: RegistryState, job_id: str, step: int) -> None:
    if state.checkpoints.pop(f"{job_id}/{step}", None) is not None:
        _forget_step(state, job_id, step)


def _forget_step(state: RegistryState, job_id: str, step: int) -> None:
    left = tuple(other for other in state.steps[job_id] if other != step)
    if left:
        state.steps[job_id] = left
    else:
        del state.steps[job_id]


@fold.on(GateSet)
def _(state: RegistryState, event: GateSet, at: datetime) -> None:
    gate = event.config
    state.models[model_key(gate.team, gate.model)] = GatedModel(gate, event.digest, event.user, at)
    prefix = f"{gate.team}/{gate.model}/"
    held = {name.removeprefix(prefix) for name in state.aliases if name.startswith(prefix)}
    for alias in held - {*gate.aliases}:
        _unprotect(state, prefix + alias)
    for alias in gate.aliases:
        state.aliases.setdefault(prefix + alias, Pointer())
    state.changes += 1
    _try_again(state, gate.team, gate.model)
    _answer(state, event, Answer())


@fold.on(GateRemoved)
def _(state: RegistryState, event: GateRemoved, _at: datetime) -> None:
    gate = state.models.pop(model_key(event.team, event.model)).gate
    for alias in gate.aliases:
        _unprotect(state, alias_key(event.team, event.model, alias))
    state.changes += 1
    _try_again(state, event.team, event.model)
    _answer(state, event, Answer())


def _unprotect(state: RegistryState, key: str) -> None:
    del state.aliases[key]
    state.aged.pop(key, None)
    for name in [name for name in state.data if name.startswith(f"{key}/")]:
        del state.data[name]


def _try_again(state: RegistryState, team: str, model: str) -> None:
    """Other comparisons may be wanted now: failures of the old ones are forgotten."""
    _undefer(state, f"compare:{team}/{model}/")
    _undefer(state, f"drift:{team}/{model}/")


# Versions


@fold.on(VersionBegun)
def _(state: RegistryState, event: VersionBegun, _at: datetime) -> None:
    number = event.registration
    state.numbers["registration"] = number
    state.registrations[number] = Registration(
        number, event.team, event.model, event.checkpoint, event.version, event.snapshot,
        event.user, event.description, request_key(event.request_source, event.request_id),
    )  # fmt: skip
    _answer(state, event, Answer(number=number, done=False))


@fold.on(VersionRegistered)
def _(state: RegistryState, event: VersionRegistered, at: datetime) -> None:
    made = state.registrations.pop(event.registration)
    state.deferred.pop(f"version:{made.number}", None)
    key = version_key(event.team, event.model, event.version)
    if made.request in state.requests:
        state.requests[made.request] = Answer(number=event.version)
    if key in state.versions and not event.replaces:
        return
    state.versions[key] = Registered(
        event.team, event.model, event.version, made.checkpoint, made.snapshot, made.user,
        made.description, at,
    )  # fmt: skip
    own = model_key(event.team, event.model)
    others = (number for number in state.numbered.get(own, ()) if number != event.version)
    state.numbered[own] = (*others, event.version)
    forget_versions(state, event.team, event.model)
    _try_again(state, event.team, event.model)


@fold.on(VersionRefused)
def _(state: RegistryState, event: VersionRefused, _at: datetime) -> None:
    made = state.registrations.pop(event.registration)
    state.deferred.pop(f"version:{made.number}", None)
    if made.request in state.requests:
        state.requests[made.request] = Answer(refused=event.reason)


@fold.on(EvaluationReported)
def _(state: RegistryState, event: EvaluationReported, _at: datetime) -> None:
    key, one = _of_version(state, event)
    state.versions[key] = replace(
        one, evaluations={**one.evaluations, event.suite: event.evaluation}
    )
    for other in versions_of(state, event.team, event.model):
        _forget_problems(state, other, event.evaluation.digest)
    _try_again(state, event.team, event.model)
    _answer(state, event, Answer(number=event.version))


def _forget_problems(state: RegistryState, one: Registered, scores: str = "") -> None:
    """Comparisons that could not be made are wanted again. `scores`: only those of these."""
    left = {
        name: made
        for name, made in one.comparisons.items()
        if not made.problem or (scores and scores not in {made.candidate, made.baseline})
    }
    if len(left) < len(one.comparisons):
        key = version_key(one.team, one.model, one.version)
        state.versions[key] = replace(one, comparisons=left)


@fold.on(EvaluationCompared)
def _(state: RegistryState, event: EvaluationCompared, _at: datetime) -> None:
    key, one = _of_version(state, event)
    compared = event.comparison
    place = comparison_key(compared.suite, compared.baseline)
    own = {
        name: other
        for name, other in one.comparisons.items()
        if name != place
        and (other.suite != compared.suite or other.candidate == compared.candidate)
    }
    same = [name for name, other in own.items() if other.suite == compared.suite]
    for name in same[: max(0, len(same) - BASELINES_KEPT + 1)]:
        del own[name]
    state.versions[key] = replace(one, comparisons={**own, place: compared})
    _undefer(state, f"compare:{key}:{compared.suite}:")


def _undefer(state: RegistryState, prefix: str) -> None:
    for name in [name for name in state.deferred if name.startswith(prefix)]:
        del state.deferred[name]


@fold.on(ServingReported)
def _(state: RegistryState, event: ServingReported, _at: datetime) -> None:
    key, one = _of_version(state, event)
    state.versions[key] = replace(one, serving=event.serving)
    _answer(state, event, Answer(number=event.version))


@fold.on(VersionApproved)
def _(state: RegistryState, event: VersionApproved, at: datetime) -> None:
    key, one = _of_version(state, event)
    approval = Approval(event.user, event.comment, at)
    others = tuple(each for each in one.approvals if each.user != event.user)
    state.versions[key] = replace(one, approvals=(*others, approval)[-100:])
    _answer(state, event, Answer(number=event.version))


# Aliases


@fold.on(PromotionBegun)
def _(state: RegistryState, event: PromotionBegun, at: datetime) -> None:
    number = event.promotion
    state.numbers["promotion"] = number
    state.promotions[number] = Promotion(
        number, event.team, event.model, event.version, event.alias, event.expected, event.user,
        at, event.override,
    )  # fmt: skip
    asked = state.versions[version_key(event.team, event.model, event.version)]
    _forget_problems(state, asked)
    _answer(state, event, Answer(number=number))


@fold.on(PromotionJudged)
def _(state: RegistryState, event: PromotionJudged, at: datetime) -> None:
    begun = state.promotions.pop(event.promotion)
    state.judged[begun.number] = replace(
        begun, baseline=event.baseline, gate=event.gate, verdict=event.verdict,
        findings=event.findings, judged_at=at,
    )  # fmt: skip
    keep_newest(state.judged, JUDGED_KEPT)


@fold.on(AliasMoved)
def _(state: RegistryState, event: AliasMoved, at: datetime) -> None:
    state.numbers["move"] = event.number
    state.moves[event.number] = Move(
        event.number, event.team, event.model, event.alias, event.from_version, event.to_version,
        event.kind, event.by, event.reason, event.evidence, at,
    )  # fmt: skip
    keep_newest(state.moves, MOVES_KEPT)
    key = alias_key(event.team, event.model, event.alias)
    old = state.aliases[key]
    before = old.before
    if event.kind == "rollback":
        while before and before[-1] != event.to_version:
            before = before[:-1]
        before = before[:-1]
    elif old.version:
        before = (*before, old.version)[-STEPS_BACK:]
    state.aliases[key] = Pointer(event.to_version, before, at)
    state.aged.pop(key, None)
    state.changes += 1
    _try_again(state, event.team, event.model)
    _answer(state, event, Answer(number=event.number))


@fold.on(AliasesProjected)
def _(state: RegistryState, event: AliasesProjected, _at: datetime) -> None:
    state.projected = event.changes
    state.missing = event.missing
    _undefer(state, "project:")


@fold.on(AliasRepaired)
def _(_state: RegistryState, _event: AliasRepaired, _at: datetime) -> None:
    pass  # for people: the table has the right version again


@fold.on(RegistryDeferred)
def _(state: RegistryState, event: RegistryDeferred, at: datetime) -> None:
    if event.effect.startswith("project:"):
        _undefer(state, "project:")  # of earlier changes
    state.deferred[event.effect] = Deferred(event.tries, event.reason, event.next_at, at)


# Data


@fold.on(ProfileNoted)
def _(state: RegistryState, event: ProfileNoted, at: datetime) -> None:
    key = f"{event.team}/{event.snapshot}"
    state.profiles.pop(key, None)
    state.profiles[key] = Profiled(event.team, event.snapshot, event.profile, at)
    forget_profiles(state)
    for name, judged in [*state.data.items()]:
        pair = {judged.baseline, judged.snapshot}
        if judged.unknown and event.snapshot in pair and name.startswith(f"{event.team}/"):
            del state.data[name]  # its object was gone
    _undefer(state, f"drift:{event.team}/")
    _answer(state, event, Answer())


@fold.on(DriftFound)
def _(state: RegistryState, event: DriftFound, at: datetime) -> None:
    judged = DataJudgement(
        event.version, event.baseline, event.snapshot, at, event.columns, event.found
    )
    _judged_data(state, event, judged)


@fold.on(DriftAbsent)
def _(state: RegistryState, event: DriftAbsent, at: datetime) -> None:
    judged = DataJudgement(event.version, event.baseline, event.snapshot, at)
    _judged_data(state, event, judged)


@fold.on(DriftUnknown)
def _(state: RegistryState, event: DriftUnknown, at: datetime) -> None:
    judged = DataJudgement(event.version, event.baseline, event.snapshot, at, unknown=event.reason)
    _judged_data(state, event, judged)


def _judged_data(
    state: RegistryState, event: DriftFound | DriftAbsent | DriftUnknown, judged: DataJudgement
) -> None:
    alias = alias_key(event.team, event.model, event.alias)
    for key, other in [*state.data.items()]:
        if other.version != judged.version and key.startswith(f"{alias}/"):
            del state.data[key]
    dataset = dataset_of(event.snapshot)
    state.data[data_key(event.team, event.model, event.alias, dataset)] = judged
    _undefer(state, f"drift:{alias}:")


@fold.on(DataAged)
def _(state: RegistryState, event: DataAged, _at: datetime) -> None:
    state.aged[alias_key(event.team, event.model, event.alias)] = event.version
