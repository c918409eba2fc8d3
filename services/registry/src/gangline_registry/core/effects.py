"""The effects that the state asks for, and what follows from their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from gangline_bus.decision import EffectDone
from gangline_registry.core import comparing, promoting, watching
from gangline_registry.core.model import (
    Compare,
    Compared,
    CompareProfiles,
    Deferred,
    Failed,
    Made,
    MakeVersion,
    ProfilesCompared,
    Project,
    Projected,
    Protected,
    Registration,
    Watch,
    version_key,
)
from gangline_registry.core.state import RegistryPlan, RegistryState, needed_versions
from gangline_schemas.events.registry import (
    AliasesProjected,
    AliasRepaired,
    DriftAbsent,
    DriftFound,
    DriftUnknown,
    EvaluationCompared,
    RegistryDeferred,
    VersionRefused,
    VersionRegistered,
)
from gangline_schemas.models import COLUMNS_SHOWN, SuiteComparison

LOOK_AGAIN = timedelta(seconds=30)
"""MLflow's table is looked at so often, in case that it was changed."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 15.0
_UNTIL_RESTART_S = 365 * 86_400.0


def note(state: RegistryState, soft: Watch, models: Sequence[str]) -> None:
    """Note the comparisons that models ask for now. Cost: their versions, and `note_data`."""
    for name in models:
        team, _, own = name.partition("/")
        found = {comparing.effect_key(one): one for one in comparing.of_model(state, team, own)}
        soft.scores.pop(name, None)
        if found:
            soft.scores[name] = found
    note_data(state, soft, models)


def note_data(state: RegistryState, soft: Watch, models: Sequence[str]) -> None:
    """Note the comparisons of profiles that models ask for now.

    Cost: their aliases; at the first call of a process also all profiles.
    """
    if soft.newest is None:
        soft.newest = watching.newest_profiles(state)
    for name in models:
        team, _, own = name.partition("/")
        data = watching.of_model(state, team, own, soft.newest)
        found = {watching.effect_key(one): one for one in data}
        soft.data.pop(name, None)
        if found:
            soft.data[name] = found


def note_table(state: RegistryState, soft: Watch) -> None:
    """Note the protected aliases if they changed."""
    if soft.now is not None and soft.changes != state.changes:
        soft.table, soft.changes = protected(state), state.changes


def wanted(state: RegistryState, soft: Watch) -> Mapping[str, object]:
    """The work that is due, by key. Each try has its own key."""
    if soft.now is None:
        return {}
    found: dict[str, object] = {}
    for key, effect in _all(state, soft):
        failed = state.deferred.get(key)
        if failed is None:
            found[f"{key}#0"] = effect
        elif _is_due(failed, soft.now) or (soft.began is not None and failed.at < soft.began):
            found[f"{key}#{failed.tries}"] = effect
    if state.changes == state.projected and any(one.version for one in soft.table):
        found[f"look:{soft.round}#0"] = Project(soft.changes, soft.table)
    return found


def _is_due(failed: Deferred, now: datetime) -> bool:
    """Whether the next try has come; one that failed later is of a clock that was put back."""
    return not failed.at <= now < failed.next_at


def _all(state: RegistryState, soft: Watch) -> Iterator[tuple[str, object]]:
    asked = set[object]()
    for number, registration in state.registrations.items():
        if _made_of(registration) not in asked:  # a request that was repeated is one version
            asked.add(_made_of(registration))
            yield f"version:{number}", MakeVersion(registration)
    if state.changes != state.projected:
        yield f"project:{soft.changes}", Project(soft.changes, soft.table)
    for scores in soft.scores.values():
        yield from scores.items()
    for data in soft.data.values():
        yield from data.items()


def _made_of(one: Registration) -> object:
    """The source of a version: equal for registrations that lead to the same version."""
    if one.checkpoint is None:
        return one.number
    return one.team, one.model, one.checkpoint.place


def _find(state: RegistryState, soft: Watch, key: str) -> object:
    """The effect of a key of `_all`; None if it is not wanted any more."""
    kind, _, rest = key.partition(":")
    model = rest.partition(":")[0].rpartition("/")[0]
    match kind:
        case "version":
            registration = state.registrations.get(int(rest))
            return None if registration is None else MakeVersion(registration)
        case "project":
            wanted = state.changes != state.projected and rest == str(soft.changes)
            return Project(soft.changes, soft.table) if wanted else None
        case "compare":
            return soft.scores.get(model, {}).get(key)
        case _:
            return soft.data.get(model, {}).get(key)


def protected(state: RegistryState) -> tuple[Protected, ...]:
    """All protected aliases as MLflow's table should have them."""
    found = []
    for key, pointer in state.aliases.items():
        team, model, alias = key.split("/")
        keep = tuple(sorted(needed_versions(state, team, model)))
        found.append(Protected(team, model, alias, pointer.version, keep))
    return tuple(found)


def done(plan: RegistryPlan, item: EffectDone) -> None:
    """Decide upon a result; of what is not wanted any more there is nothing to decide."""
    key, _, tries = item.key.rpartition("#")
    failed = plan.state.deferred.get(key)
    if key.startswith("look:"):
        if isinstance(item.result, Projected):
            _projected(plan, item.result, changes=None)
        return
    if str(0 if failed is None else failed.tries) != tries:
        return
    effect = _find(plan.state, plan.soft, key)
    if effect is None:
        return
    if isinstance(item.result, Failed) and not item.result.final:
        _defer(plan, key, int(tries), item.result)
        return
    _done(plan, item, effect)


def _done(plan: RegistryPlan, item: EffectDone, effect: object) -> None:
    match effect, item.result:
        case MakeVersion(), Made() | Failed():
            _made(plan, effect, item.result)
        case Compare(), Compared(comparison):
            _compared(plan, effect, comparison)
        case Compare(), Failed(reason):
            problem_of = SuiteComparison(
                suite=effect.suite,
                candidate=effect.candidate.digest,
                baseline=effect.baseline.digest,
                problem=reason,
            )
            _compared(plan, effect, problem_of)
        case CompareProfiles(), ProfilesCompared() | Failed():
            _compared_profiles(plan, effect, item.result)
        case Project(changes=changes), Projected():
            _projected(plan, item.result, changes)
        case _:
            raise TypeError(f"{item.key}: {type(item.result).__name__} is not an outcome of it")


def _defer(plan: RegistryPlan, key: str, tries: int, problem: Failed) -> None:
    wait_s = min(_LONGEST_RETRY_S, _FIRST_RETRY_S * 2.0 ** min(tries, 10))
    if problem.until_restart:
        wait_s = _UNTIL_RESTART_S
    next_at = plan.now + timedelta(seconds=wait_s)
    deferred = RegistryDeferred(effect=key, tries=tries + 1, reason=problem.reason, next_at=next_at)
    plan.add("registry", deferred)


def _made(plan: RegistryPlan, effect: MakeVersion, result: Made | Failed) -> None:
    made_of = _made_of(effect.registration)
    waiting = [*plan.state.registrations.values()]
    for one in waiting:
        if _made_of(one) == made_of:
            _end_registration(plan, one, result)


def _end_registration(plan: RegistryPlan, one: Registration, result: Made | Failed) -> None:
    names = {"team": one.team, "model": one.model, "registration": one.number}
    if isinstance(result, Failed):
        plan.add(one.model, VersionRefused(**names, reason=result.reason))
        return
    number, replaces = result.version, _is_another(plan, one, result.version)
    if replaces and number in needed_versions(plan.state, one.team, one.model):
        reason = (
            f"MLflow counts the versions of {one.model} from 1 again, and version {number} is one "
            "that a protected alias needs; register it again, until MLflow's numbers are new ones"
        )
        plan.add(one.model, VersionRefused(**names, reason=reason))
    else:
        plan.add(one.model, VersionRegistered(**names, version=number, replaces=replaces))


def _is_another(plan: RegistryPlan, one: Registration, number: int) -> bool:
    """Whether the known version of this number is not of the registration's checkpoint."""
    known = plan.state.versions.get(version_key(one.team, one.model, number))
    if known is None or one.checkpoint is None:
        return False
    return known.checkpoint is None or known.checkpoint.place != one.checkpoint.place


def _compared(plan: RegistryPlan, effect: Compare, comparison: SuiteComparison) -> None:
    compared = EvaluationCompared(
        team=effect.team, model=effect.model, version=effect.version,
        baseline=effect.baseline_version, comparison=comparison,
    )  # fmt: skip
    plan.add(effect.model, compared)
    promoting.settle(plan, effect.team, effect.model)


def _compared_profiles(
    plan: RegistryPlan, effect: CompareProfiles, result: ProfilesCompared | Failed
) -> None:
    names = {
        "team": effect.team, "model": effect.model, "alias": effect.alias,
        "version": effect.version, "baseline": effect.baseline.snapshot,
        "snapshot": effect.snapshot.snapshot,
    }  # fmt: skip
    if isinstance(result, Failed):
        plan.add(effect.model, DriftUnknown(**names, reason=result.reason))
    elif result.columns:
        shown, count = result.columns[:COLUMNS_SHOWN], len(result.columns)
        plan.add(effect.model, DriftFound(**names, columns=shown, found=count))
    else:
        plan.add(effect.model, DriftAbsent(**names))


def _projected(plan: RegistryPlan, result: Projected, changes: int | None) -> None:
    """`changes`: of the first projection after a change; None: the table was looked at again."""
    if changes is None:
        for team, model, alias, found in result.repaired:
            pointer = plan.state.aliases.get(f"{team}/{model}/{alias}")
            if pointer is not None:
                repaired = AliasRepaired(
                    team=team, model=model, alias=alias, found=found, version=pointer.version
                )
                plan.add(model, repaired)
        if plan.state.changes != plan.state.projected or result.missing == plan.state.missing:
            return
        changes = plan.state.changes
    plan.add("registry", AliasesProjected(changes=changes, missing=result.missing[:100]))
