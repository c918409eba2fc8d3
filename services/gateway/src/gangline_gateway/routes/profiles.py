"""/v1/profiles: profiles of snapshots of data, which the registry compares."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated

from fastapi import Query

from gangline_gateway import registry_state
from gangline_gateway.app_context import ID_PATTERN, App, Caller, answers, may_change, router
from gangline_gateway.objects import keep, store_of
from gangline_gateway.requested_model import TeamQuery, decided, state_of
from gangline_registry.core.profile import write_profile
from gangline_registry.core.scores import PREFIX
from gangline_schemas.api import models as api
from gangline_schemas.events.model_requests import SnapshotProfiled
from gangline_schemas.models import ProfileRef

profiles = router("Models")
SHOWN = 500


@profiles.get(
    "/v1/profiles",
    operation_id="listProfiles",
    summary="List snapshots that have profiles",
    response_model=api.ProfileList,
    responses=answers(),
)
def list_profiles(app: App, caller: Caller, team: TeamQuery = None) -> api.ProfileList:
    """Of the caller's teams, the newest first."""
    found = (
        registry_state.profile(one)
        for one in reversed(state_of(app).profiles.values())
        if caller.reads(one.team) and team in {None, one.team}
    )
    return api.ProfileList(profiles=[*islice(found, SHOWN)])


@profiles.post(
    "/v1/profiles",
    operation_id="sendProfile",
    summary="Send the profile of a snapshot of data",
    status_code=201,
    response_model=api.ProfileRow,
    responses=answers(409),
)
async def send_profile(
    body: api.ProfileBody,
    app: App,
    caller: Caller,
    team: Annotated[str, Query(pattern=ID_PATTERN, description="The team whose data it is.")],
) -> api.ProfileRow:
    """It is compared with the data of the versions that protected aliases point to."""
    may_change(caller, team)
    raw, digest = await asyncio.to_thread(write_profile, body.profile)
    ref = ProfileRef(
        digest=digest, key=f"{PREFIX}/{team}/profiles/{digest}.json", rows=body.profile.rows,
        columns=len(body.profile.columns), made_at=body.made_at, serving=body.serving,
    )  # fmt: skip
    await asyncio.to_thread(keep, store_of(app), ref.key, raw)
    asked = SnapshotProfiled(team=team, snapshot=body.snapshot, profile=ref, user=caller.name)
    state, _ = await decided(app, team, asked)
    return registry_state.profile(state.profiles[f"{team}/{body.snapshot}"])
