"""Approved uses of data as the gateway gives them. docs/concepts/data.md says what they mean."""

from __future__ import annotations

from datetime import datetime

from gangline.api_models import Answer


class DataUse(Answer):
    """How a use of data stands after a request."""

    snapshot: str
    project: str
    purpose: str
    approved: bool


class Approval(Answer):
    """A use of data that holds, and who approved it."""

    snapshot: str
    project: str
    purpose: str
    user: str = ""
    approved_at: datetime


class ApprovalList(Answer):
    """Uses of data that hold."""

    approvals: list[Approval]
