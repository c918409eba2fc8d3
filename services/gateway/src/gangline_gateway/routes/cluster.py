"""/v1/teams, /v1/nodes, /v1/queue, /v1/whoami and /v1/version."""

from __future__ import annotations

from bisect import bisect_right
from importlib.metadata import version
from typing import Annotated

from fastapi import Path, Query

from gangline_gateway import audit, present
from gangline_gateway.app_context import (
    ID_PATTERN,
    Admin,
    App,
    Caller,
    answers,
    router,
    visible_teams,
)
from gangline_gateway.gpu_map import gpu_map
from gangline_gateway.live_model import LiveNode, Outcome
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import ProblemError, conflict, not_found, unavailable
from gangline_gateway.queue import queue, seen
from gangline_gateway.quota_state import state_of
from gangline_gateway.scheduler_questions import NoAnswerError
from gangline_gateway.scheduling import shards
from gangline_gateway.teams import teams
from gangline_schemas.api.cluster import (
    DrainBody,
    Drained,
    GpuMap,
    Node,
    NodeList,
    Queue,
    Team,
    TeamBody,
    TeamList,
    Version,
    Whoami,
)
from gangline_schemas.api.questions import QueueOutlook
from gangline_schemas.events.admin import NodeDrainRequested, TeamConfigureRequested

cluster = router("Cluster")
who = router("About")
_API = "v1"


@cluster.get(
    "/v1/teams",
    operation_id="listTeams",
    summary="Teams, their limits and use",
    response_model=TeamList,
    responses=answers(),
)
def list_teams(app: App, caller: Caller) -> TeamList:
    """The teams that the caller can see."""
    return TeamList(teams=teams(app.tail.view(), app.clock(), visible_teams(caller)))


@cluster.put(
    "/v1/teams/{team}",
    operation_id="configureTeam",
    summary="Create or change a team",
    response_model=Team,
    responses=answers(409),
)
async def put_team(
    team: Annotated[str, Path(pattern=ID_PATTERN)],
    body: TeamBody,
    app: App,
    caller: Admin,
) -> Team:
    """Needs an admin. 409 if it would break the tree of teams.

    503 if quota did not answer in time; the request is on the bus then.
    """
    audit.note().team = team
    config = body.config(team)

    def configured(live: LiveView) -> Team | None:
        if state_of(live.quota).teams.get(team) != config:
            return None
        return teams(live, app.clock(), frozenset([team]))[0]

    answer = app.tail.query(configured)
    if answer is not None:
        return answer
    event = TeamConfigureRequested(config=config, user=caller.name)
    request_id = await app.publisher.publish(team, event)

    def decided(live: LiveView) -> Outcome | None:
        return Outcome() if configured(live) else live.outcomes.get(request_id)

    outcome = await app.tail.until(decided, app.answer_wait_s)
    if outcome is not None and outcome.refused is not None:
        raise conflict("refused", outcome.refused)
    answer = app.tail.query(configured)
    if answer is not None:
        return answer
    raise unavailable("undecided", "quota has not answered yet; the request is on the bus")


@cluster.get(
    "/v1/nodes",
    operation_id="listNodes",
    summary="List nodes",
    response_model=NodeList,
    responses=answers(),
)
def list_nodes(
    app: App,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[
        str | None, Query(max_length=63, description="The cursor of an earlier page.")
    ] = None,
) -> NodeList:
    """By id; jobs of other teams are counted but not named."""
    visible, view = visible_teams(caller), app.tail.view()
    first = 0 if cursor is None else bisect_right(view.nodes, cursor)
    page = view.nodes[first : first + limit]
    nodes = filter(None, map(view.node, page))
    return NodeList(
        nodes=[present.node(view, node, visible) for node in nodes],
        cursor=page[-1] if len(view.nodes) > first + limit else None,
    )


@cluster.get(
    "/v1/gpus",
    operation_id="mapGpus",
    summary="Map all GPUs",
    response_model=GpuMap,
    responses=answers(),
)
async def map_gpus(app: App, caller: Caller) -> GpuMap:
    """Each GPU's node, rack and gang, and the largest gang that fits now, in one answer."""
    visible = visible_teams(caller)

    def make() -> GpuMap:
        view = app.tail.view()
        return gpu_map(view, shards(view.scheduling), app.clock(), visible)

    return await app.shared.get(("gpus", visible), make)


@cluster.get(
    "/v1/nodes/{node_id}",
    operation_id="getNode",
    summary="Show a node",
    response_model=Node,
    responses=answers(404),
)
def get_node(node_id: Annotated[str, Path(pattern=ID_PATTERN)], app: App, caller: Caller) -> Node:
    """One node, as in the list; jobs of other teams are counted but not named."""
    view = app.tail.view()
    found = view.node(node_id)
    if found is None:
        raise not_found("node")
    return present.node(view, found, visible_teams(caller))


@cluster.post(
    "/v1/nodes/{node_id}/drain",
    operation_id="drainNode",
    summary="Drain a node, or end the drain",
    status_code=202,
    response_model=Drained,
    responses=answers(404, 409),
)
async def drain_node(
    node_id: Annotated[str, Path(pattern=ID_PATTERN)],
    body: DrainBody,
    app: App,
    caller: Admin,
) -> Drained:
    """Needs an admin. With `move_jobs` gangs move after their next checkpoint; else they stay."""
    view = app.tail.view()
    if view.scheduled_node(node_id) is None:  # the scheduler would ignore it
        raise _nothing_to_drain(node_id, view.node(node_id))
    event = NodeDrainRequested(
        node_id=node_id,
        drain=body.drain,
        move_jobs=body.move_jobs,
        reason=body.reason,
        user=caller.name,
    )
    await app.request(node_id, event)

    def status_of(live: LiveView) -> str:
        node = live.node(node_id)
        if node is None:
            raise not_found("node")
        return node.status

    def settled(live: LiveView) -> str | None:
        status = status_of(live)
        kept_off = {"draining": True, "cordoned": False}.get(status)
        wanted = body.move_jobs if body.drain else None
        return status if kept_off == wanted else None

    status = await app.tail.until(settled, app.answer_wait_s)
    now = status or app.tail.query(status_of)
    return Drained(node_id=node_id, status=now)


def _nothing_to_drain(node_id: str, found: LiveNode | None) -> ProblemError:
    if found is None:
        return ProblemError(
            404, "not-found", f"there is no node {node_id}; `gangline nodes` lists all of them"
        )
    return conflict(
        "node-not-joined",
        f"node {node_id} is {found.status} and has never joined, so nothing can start there: "
        f"{found.reasons}. To keep it out when that is fixed, stop its agent",
    )


@cluster.get(
    "/v1/queue",
    operation_id="getQueue",
    summary="List the queue, in the scheduler's order",
    response_model=Queue,
    responses=answers(),
)
def get_queue(
    app: App,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[int, Query(ge=0, le=2**53, description="The cursor of an earlier page.")] = 0,
    team: Annotated[str | None, Query(max_length=63, description="Only this team's jobs.")] = None,
) -> Queue:
    """Pending jobs that the caller can see, with their positions among all jobs."""
    found, visible = shards(app.tail.view().scheduling), visible_teams(caller)
    if team is not None:
        visible = frozenset({team}) if visible is None else visible & {team}
    return queue(found, app.clock(), visible, limit=limit, after=cursor)


@cluster.get(
    "/v1/queue/outlook",
    operation_id="getQueueOutlook",
    summary="Expected starts and reservations",
    response_model=QueueOutlook,
    responses=answers(),
)
def get_outlook(app: App, caller: Caller) -> QueueOutlook:
    """Of the first 100 pending jobs of each shard; those of other teams have no names.

    503 if no answer is possible now, or if too many questions run.
    """
    try:
        found = app.scheduler.outlook(app.clock())
    except NoAnswerError as error:
        raise unavailable("no-answer", str(error)) from None
    return seen(found, visible_teams(caller))


@who.get(
    "/v1/whoami",
    operation_id="whoami",
    summary="The token's user",
    response_model=Whoami,
    responses=answers(),
)
async def whoami(caller: Caller) -> Whoami:
    """The token's user, role, teams and scope."""
    return Whoami(
        name=caller.name,
        role=caller.role.value,
        teams=sorted(caller.teams),
        scope=caller.scope.value,
        via=caller.via,
    )


@who.get(
    "/v1/version",
    operation_id="getVersion",
    summary="The gateway's version",
    response_model=Version,
    responses=answers(),
)
async def get_version(caller: Caller) -> Version:  # noqa: ARG001 - documents the token
    """The versions of the gateway and of its API."""
    return Version(version=version("gangline-gateway"), api=_API)
