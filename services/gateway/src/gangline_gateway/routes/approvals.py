"""/v1/data-approvals: approved uses of data snapshots by project and purpose."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from gangline_gateway.app_context import Admin, App, answers, router
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import unavailable
from gangline_schemas.api.data import ApprovalBody, ApprovalList, DataUseStatus
from gangline_schemas.data_use import DataUse
from gangline_schemas.events.admin import SnapshotApprovalRequested

approvals = router("Data")


@approvals.get(
    "/v1/data-approvals",
    operation_id="listDataApprovals",
    summary="List approved uses of data",
    response_model=ApprovalList,
    responses=answers(),
)
def list_approvals(
    app: App,
    caller: Admin,  # noqa: ARG001 - the names of other teams' data and projects are here
    snapshot: Annotated[str, Query(max_length=512, description="Only of this snapshot.")] = "",
) -> ApprovalList:
    """Needs an admin."""
    known = sorted(app.tail.view().approvals.items())
    return ApprovalList(approvals=[given for _, given in known if snapshot in {"", given.snapshot}])


@approvals.post(
    "/v1/data-approvals",
    operation_id="approveData",
    summary="Approve a use of data, or withdraw it",
    response_model=DataUseStatus,
    responses=answers(),
)
async def approve_data(body: ApprovalBody, app: App, caller: Admin) -> DataUseStatus:
    """Needs an admin. A use that is already approved or withdrawn stays so.

    503 if quota did not answer in time; the request is on the bus then.
    """
    use = DataUse(body.snapshot, body.project, body.purpose)

    def already(live: LiveView) -> DataUseStatus | None:
        if (use in live.approvals) != body.approve:
            return None
        return DataUseStatus(**use._asdict(), approved=body.approve)

    answer = app.tail.query(already)
    if answer is None:
        event = SnapshotApprovalRequested(**use._asdict(), approve=body.approve, user=caller.name)
        await app.publisher.publish(body.snapshot, event)
        answer = await app.tail.until(already, app.answer_wait_s)
    if answer is None:
        raise unavailable("undecided", "quota has not answered yet; the request is on the bus")
    return answer
