"""Where a version comes from: its run with failures, code, image, seed and data, in one answer."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from gangline_gateway import registry_state
from gangline_gateway.app_context import AppContext, visible_teams
from gangline_gateway.history_access import Queries
from gangline_gateway.images import image_of_run
from gangline_gateway.incidents import IncidentFilter
from gangline_registry.core.model import Registered
from gangline_registry.core.state import RegistryState
from gangline_schemas.api.incidents import Incident
from gangline_schemas.api.models import Lineage, SnapshotLineage
from gangline_schemas.api.runs import Run
from gangline_schemas.job import JobSpec
from gangline_service.tokens import Principal

INCIDENTS = 50


def lineage_of(
    app: AppContext, caller: Principal, state: RegistryState, one: Registered, alias: str
) -> Lineage:
    """The lineage of the version that an alias points to. Raises a 503 problem."""
    name = (one.team, one.model)
    move = next(
        (each for each in registry_state.moves(state, name, alias)
         if each.to_version == one.version), None,
    )  # fmt: skip
    judged = state.judged.get(move.promotion) if move is not None and move.promotion else None
    run, incidents, spec, announced = _history(app, caller, one)
    return Lineage(
        team=one.team,
        model=one.model,
        alias=alias,
        version=one.version,
        move=move,
        promotion=None if judged is None else registry_state.promotion(judged),
        checkpoint=one.checkpoint,
        run=run,
        incidents=incidents,
        code_ref=spec.get("code_ref"),
        code_bundle=spec.get("code_bundle"),
        code_diff=spec.get("code_diff_digest"),
        image=_image(app, one, spec),
        command=list(spec.get("command") or ()),
        hyperparameters=dict(spec.get("hyperparameters") or {}),
        seed=spec.get("seed"),
        snapshot=None if one.snapshot is None else _snapshot(state, one, announced),
    )


Found = tuple[Run | None, list[Incident], dict[str, Any], dict[str, Any]]
"""The run with its incidents and spec, and the announcement of the snapshot."""


def _history(app: AppContext, caller: Principal, one: Registered) -> Found:
    """All that ClickHouse knows; empty for a version without a checkpoint."""
    if one.checkpoint is None:
        return None, [], {}, {}
    job_id, teams = one.checkpoint.job_id, visible_teams(caller)

    def read(queries: Queries) -> Found:
        found = queries.history.run(job_id, teams)
        if found is None:
            return None, [], {}, {}
        wanted = IncidentFilter(teams=teams, job_id=job_id)
        incidents, _ = queries.incidents.page(wanted, limit=INCIDENTS, cursor=None)
        announced = queries.history.announced(one.team, one.snapshot) if one.snapshot else {}
        return found.run, incidents, json.loads(found.spec or "{}"), announced

    return app.history.query(read)


def _image(app: AppContext, one: Registered, spec: dict[str, Any]) -> str | None:
    """By its digest, if a node has read it."""
    if one.checkpoint is None or not spec:
        return None
    try:
        job = JobSpec.model_validate(spec)
    except ValidationError:  # this version cannot read it
        return spec.get("image")
    return image_of_run(app, job, one.team, one.checkpoint.job_id)


def _snapshot(state: RegistryState, one: Registered, announced: dict[str, Any]) -> SnapshotLineage:
    profiled = state.profiles.get(f"{one.team}/{one.snapshot}")
    return SnapshotLineage(
        snapshot=one.snapshot or "",
        place=announced.get("place", ""),
        sources=announced.get("sources", []),
        profile=None if profiled is None else profiled.profile.digest,
        rows=None if profiled is None else profiled.profile.rows,
        made_at=None if profiled is None else profiled.profile.made_at,
    )
