"""Incidents: what failed, what it cost, and when it was over."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

from gangline_gateway.gate import (
    ID_PATTERN,
    Caller,
    JobId,
    TheGate,
    answers,
    router,
    visible_teams,
)
from gangline_gateway.incidents import MAX_PAGE, IncidentFilter
from gangline_gateway.models import Answer
from gangline_gateway.past import Questions
from gangline_gateway.problems import not_found
from gangline_gateway.routes.runs import moment
from gangline_schemas.events.faults import FailureClass
from gangline_schemas.events.workers import WorkerStacks

incidents = router("Runs")


class IncidentAnswer(Answer):
    """One failure, from its verdict to the first step after it."""

    team: str
    job_id: str
    attempt: int = Field(description="The one that failed.")
    outcome: str = Field(description="open, recovered, failed_again, job_failed or job_ended.")
    failure_class: str = Field(description="What broke; docs/runbooks has a page for each.")
    cause: str
    action: str = Field(description="restart or fail")
    message: str
    first_rank: int | None = Field(description="The rank that failed first.")
    node_id: str
    avoid_nodes: list[str]
    review: bool = Field(description="A person shall look at it: bad data.")
    failures: int = Field(description="Of this job up to this one.")
    world_size: int
    last_step: int | None
    committed_step: int | None = Field(description="Of the last checkpoint before the failure.")
    resume_step: int | None = Field(description="Where the next attempt began.")
    failed_at: datetime
    next_attempt: int | None
    allocated_at: datetime | None = Field(description="The next attempt had its GPUs.")
    running_at: datetime | None = Field(description="All its ranks ran.")
    first_step_at: datetime | None = Field(description="Its first step, to about a second.")
    closed_at: datetime | None
    recover_s: float | None = Field(description="From the failure to the first step.")
    work_lost_s: float = Field(description="Training since the last checkpoint.")
    down_s: float
    lost_gpu_s: float = Field(description="(work_lost_s + down_s) x world_size.")


class ShareAnswer(Answer):
    """The incidents of one class, node or job, or what was left out of one shard of data."""

    name: str
    incidents: int
    lost_gpu_s: float


class TotalsAnswer(Answer):
    """All incidents that the filters accept, whatever the page."""

    incidents: int
    recovered: int
    recover_median_s: float | None
    recover_p95_s: float | None
    lost_gpu_s: float
    by_class: list[ShareAnswer]
    by_node: list[ShareAnswer]
    by_job: list[ShareAnswer]
    by_shard: list[ShareAnswer] = Field(
        description="Shards of data: how many blocks jobs went on without."
    )


class NoticeAnswer(Answer):
    """What was noticed of an attempt that went on."""

    team: str
    job_id: str
    attempt: int
    kind: str = Field(description="straggling, loss_spike or not_finite.")
    rank: int
    node_id: str
    message: str
    noted_at: datetime


class IncidentPageAnswer(Answer):
    """Incidents, newest first."""

    incidents: list[IncidentAnswer]
    totals: TotalsAnswer
    notices: list[NoticeAnswer] = Field(description="The newest 20; none after the first page.")
    cursor: str | None


class StacksAnswer(Answer):
    """What one rank of a gang that hung was doing."""

    rank: int
    node_id: str
    pid: int
    state: str = Field(description="Of its process: running, sleeping, stopped, ...")
    last_step: int | None
    stacks: str = Field(description="Of each thread, the innermost call first.")
    missing: str | None = Field(description="Why there are no stacks, or not all of them.")


class IncidentDetailAnswer(Answer):
    """One failure, and the stacks of its ranks if it was a hang."""

    incident: IncidentAnswer
    stacks: list[StacksAnswer]


@incidents.get(
    "/v1/incidents",
    operation_id="listIncidents",
    summary="What failed, and what it cost",
    response_model=IncidentPageAnswer,
    responses=answers(),
)
def list_incidents(
    gate: TheGate,
    caller: Caller,
    *,
    job: Annotated[str, Query(pattern=ID_PATTERN)] = "",
    node: Annotated[str, Query(pattern=ID_PATTERN)] = "",
    team: Annotated[list[str] | None, Query(max_length=50)] = None,
    failure_class: Annotated[list[FailureClass] | None, Query(max_length=20)] = None,
    since: Annotated[datetime | None, Query(description="Failed then or later.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(max_length=120)] = None,
) -> IncidentPageAnswer:
    """All failures of the teams that the token sees, newest first, with their totals."""
    teams = visible_teams(caller)
    if team:
        teams = frozenset(team) if teams is None else teams & frozenset(team)
    wanted = IncidentFilter(
        teams=teams,
        job_id=job,
        node_id=node,
        classes=tuple(item.value for item in failure_class or ()),
        since=moment("since", since),
    )

    def ask(questions: Questions) -> IncidentPageAnswer:
        page = questions.incidents.page(wanted, limit=limit, cursor=cursor)
        totals = questions.incidents.totals(wanted)
        notices = questions.incidents.notices(wanted) if cursor is None else []
        return IncidentPageAnswer.model_validate(
            {
                "incidents": [asdict(row) for row in page.incidents],
                "totals": asdict(totals),
                "notices": [asdict(row) for row in notices],
                "cursor": page.cursor,
            }
        )

    return gate.past.ask(ask)


@incidents.get(
    "/v1/incidents/{job_id}/{attempt}",
    operation_id="getIncident",
    summary="One failure, with the stacks of its ranks",
    response_model=IncidentDetailAnswer,
    responses=answers(404),
)
def get_incident(
    gate: TheGate,
    caller: Caller,
    job_id: JobId,
    attempt: Annotated[int, Path(ge=1, lt=2**32, description="The one that failed.")],
) -> IncidentDetailAnswer:
    """Stacks are read of gangs that hang, before they are killed; other failures have none."""
    teams = visible_teams(caller)

    def ask(questions: Questions) -> IncidentDetailAnswer | None:
        found = questions.incidents.one(job_id, attempt, teams)
        if found is None:
            return None
        stacks = questions.incidents.stacks(job_id, attempt)
        return IncidentDetailAnswer.model_validate(
            {"incident": asdict(found), "stacks": [_stacks(item) for item in stacks]}
        )

    answer = gate.past.ask(ask)
    if answer is None:
        raise not_found("incident")
    return answer


def _stacks(item: WorkerStacks) -> dict[str, object]:
    return {name: getattr(item, name) for name in StacksAnswer.model_fields}
