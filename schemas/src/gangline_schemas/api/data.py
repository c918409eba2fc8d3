"""Approved uses of data."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field, JsonValue

from gangline_schemas.api.base import Answer, Body
from gangline_schemas.base import Identifier
from gangline_schemas.data_use import SnapshotName
from gangline_schemas.limits import ShortText

_EXAMPLE: dict[str, JsonValue] = {
    "snapshot": "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b",
    "project": "assistants",
    "purpose": "model-training",
}


class ApprovalBody(Body):
    """A use of data, and whether it is approved from now on."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})
    snapshot: SnapshotName = Field(description="Its whole name, as `gangline data show` prints it.")
    project: Identifier
    purpose: ShortText
    approve: bool = Field(default=True, description="false: withdrawn; admitted jobs keep running.")


class DataUseStatus(Answer):
    """How a use of data stands after the request."""

    snapshot: str
    project: str
    purpose: str
    approved: bool


class Approval(Answer):
    """A use of data that holds."""

    snapshot: str
    project: str
    purpose: str
    user: str = Field(description="The user that approved it.")
    approved_at: datetime


class ApprovalList(Answer):
    """Uses of data that hold, by name."""

    approvals: list[Approval]
