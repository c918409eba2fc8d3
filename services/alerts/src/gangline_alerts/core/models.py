"""The data of champions: what the registry found, noted and folded."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gangline_alerts.core.model import Aged, DataNews, ModelData
from gangline_alerts.core.state import AlertPlan, AlertState, fold
from gangline_schemas.base import Event
from gangline_schemas.data_use import dataset_of
from gangline_schemas.events.alerts import ModelAgeNoted, ModelDataForgotten, ModelDataNoted
from gangline_schemas.events.registry import (
    AliasMoved,
    DataAged,
    DriftAbsent,
    DriftFound,
    GateRemoved,
    GateSet,
)

NO_LIMIT_DAYS = 36_500.0
"""The limit of a gate without one. The age stays noted, because the registry notes it once."""


def take(plan: AlertPlan, event: Event) -> None:
    """Note what an event of the registry changes."""
    match event:
        case DriftFound():
            columns = tuple(one.column for one in event.columns)
            _note(plan, event, event.found, columns)
        case DriftAbsent():
            _note(plan, event, 0, ())
        case DataAged():
            names = {"team": event.team, "model": event.model, "alias": event.alias}
            aged = Aged(event.snapshot, event.version, event.made_at, event.limit_days)
            held = plan.state.models.get(_key(event))
            if held is None or held.aged != aged:
                plan.add(event.model, ModelAgeNoted(**names, **_fields(aged)))
        case AliasMoved():
            if _key(event) in plan.state.models:
                _forget(plan, plan.state.models[_key(event)])
        case GateRemoved(team=team, model=model):
            for held in _of_model(plan.state, team, model):
                _forget(plan, held)
        case GateSet():
            _by_gate(plan, event)
        case _:
            pass


def _note(
    plan: AlertPlan, event: DriftFound | DriftAbsent, found: int, columns: tuple[str, ...]
) -> None:
    held = plan.state.models.get(_key(event))
    before = None if held is None else held.news.get(dataset_of(event.snapshot))
    if not found and (before is None or not before.found):
        return
    known = None if before is None else (before.snapshot, before.version, before.found)
    if known == (event.snapshot, event.version, found):
        return
    noted = ModelDataNoted(
        team=event.team, model=event.model, alias=event.alias, version=event.version,
        baseline=event.baseline, snapshot=event.snapshot, found=found, columns=columns,
    )  # fmt: skip
    plan.add(event.model, noted)


def _by_gate(plan: AlertPlan, event: GateSet) -> None:
    """A new gate protects other aliases, or allows other ages."""
    gate = event.config
    rules = gate.training_data
    for held in _of_model(plan.state, gate.team, gate.model):
        if held.alias not in gate.aliases or rules is None:
            _forget(plan, held)
            continue
        names = {"team": held.team, "model": held.model, "alias": held.alias}
        if rules.drift is None:
            for one in held.news.values():
                if one.found:
                    plan.add(held.model, ModelDataNoted(**names, **_like(one)))
        limit_days = rules.max_age_days or NO_LIMIT_DAYS
        if held.aged is not None and limit_days != held.aged.limit_days:
            fields = {**_fields(held.aged), "limit_days": limit_days}
            plan.add(held.model, ModelAgeNoted(**names, **fields))


def _forget(plan: AlertPlan, held: ModelData) -> None:
    gone = ModelDataForgotten(team=held.team, model=held.model, alias=held.alias)
    plan.add(held.model, gone)


def _of_model(state: AlertState, team: str, model: str) -> list[ModelData]:
    return [one for one in state.models.values() if (one.team, one.model) == (team, model)]


def _fields(aged: Aged) -> dict[str, object]:
    return {name: getattr(aged, name) for name in Aged.__dataclass_fields__}


def _like(one: DataNews) -> dict[str, object]:
    """The fields of the same news, with no column that moved."""
    return {"version": one.version, "baseline": one.baseline, "snapshot": one.snapshot, "found": 0}


OfAlias = (
    ModelDataNoted | ModelAgeNoted | ModelDataForgotten
    | DriftFound | DriftAbsent | DataAged | AliasMoved
)  # fmt: skip


def _key(event: OfAlias) -> str:
    return f"{event.team}/{event.model}/{event.alias}"


def _held(state: AlertState, event: ModelDataNoted | ModelAgeNoted) -> ModelData:
    return state.models.get(_key(event), ModelData(event.team, event.model, event.alias))


@fold.on(ModelDataNoted)
def _(state: AlertState, event: ModelDataNoted, at: datetime) -> None:
    news = DataNews(event.snapshot, event.baseline, event.version, event.found, event.columns, at)
    held = _held(state, event)
    changed = {**held.news, dataset_of(event.snapshot): news}
    state.models[_key(event)] = replace(held, news=changed)


@fold.on(ModelAgeNoted)
def _(state: AlertState, event: ModelAgeNoted, _at: datetime) -> None:
    aged = Aged(event.snapshot, event.version, event.made_at, event.limit_days)
    state.models[_key(event)] = replace(_held(state, event), aged=aged)


@fold.on(ModelDataForgotten)
def _(state: AlertState, event: ModelDataForgotten, _at: datetime) -> None:
    del state.models[_key(event)]
