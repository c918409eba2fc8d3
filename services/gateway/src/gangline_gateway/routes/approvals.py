"""What data may be used for: who approved which snapshot for which project and purpose."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from gangline_gateway.gate import Admin, TheGate, answers, router
from gangline_gateway.live import Live
from gangline_gateway.models import Answer
from gangline_gateway.problems import unavailable
from gangline_schemas.base import Identifier
from gangline_schemas.data_use import DataUse, SnapshotName
from gangline_schemas.events.requests import SnapshotApprovalRequested
from gangline_schemas.limits import ShortText

approvals = router("Data")
_EXAMPLE: dict[str, JsonValue] = {
    "snapshot": "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b",
    "project": "assistants",
    "purpose": "model-training",
}


class ApprovalBody(BaseModel):
    """A use of data, and whether it is approved from now on."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [_EXAMPLE]})
    snapshot: SnapshotName = Field(description="Its whole name, as `gangline data show` prints it.")
    project: Identifier
    purpose: ShortText
    approve: bool = Field(default=True, description="false: withdrawn; admitted jobs go on.")


class DataUseAnswer(Answer):
    """How a use of data stands after the request."""

    snapshot: str
    project: str
    purpose: str
    approved: bool


class ApprovalAnswer(Answer):
    """A use of data that holds."""

    snapshot: str
    project: str
    purpose: str
    user: str = Field(description="Who approved it.")
    approved_at: datetime


class ApprovalList(Answer):
    """Uses of data that hold, by name."""

    approvals: list[ApprovalAnswer]


@approvals.get(
    "/v1/data-approvals",
    operation_id="listDataApprovals",
    summary="What data may be used for",
    response_model=ApprovalList,
    responses=answers(),
)
def list_approvals(
    gate: TheGate,
    caller: Admin,  # noqa: ARG001 - the names of other teams' data and projects are here
    snapshot: Annotated[str, Query(max_length=512, description="Only of this one.")] = "",
) -> ApprovalList:
    """Needs an admin."""
    known = gate.tail.ask(lambda live: dict(live.approvals))
    return ApprovalList(
        approvals=[
            ApprovalAnswer(**use._asdict(), user=given.user, approved_at=given.approved_at)
            for use, given in sorted(known.items())
            if snapshot in {"", use.snapshot}
        ]
    )


@approvals.post(
    "/v1/data-approvals",
    operation_id="approveData",
    summary="Approve a use of data, or withdraw it",
    response_model=DataUseAnswer,
    responses=answers(),
)
async def approve_data(body: ApprovalBody, gate: TheGate, caller: Admin) -> DataUseAnswer:
    """Needs an admin. What stands so already stays.

    503 when quota did not answer in time: the request is on the bus then.
    """
    use = DataUse(body.snapshot, body.project, body.purpose)

    def stands(live: Live) -> DataUseAnswer | None:
        if (use in live.approvals) != body.approve:
            return None
        return DataUseAnswer(**use._asdict(), approved=body.approve)

    answer = gate.tail.ask(stands)
    if answer is None:
        event = SnapshotApprovalRequested(**use._asdict(), approve=body.approve, user=caller.name)
        await gate.publisher.publish(body.snapshot, event)
        answer = await gate.tail.until(stands, gate.answer_wait_s)
    if answer is None:
        raise unavailable("undecided", "quota has not answered yet; the request is on the bus")
    return answer
