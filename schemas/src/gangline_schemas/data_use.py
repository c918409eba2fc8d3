"""Approvals of data: snapshots are approved by name, for a project and a purpose.

A snapshot's name ends in the digest of its content, so an approval is of these bytes and of no
others. The quota service's setting `data_approvals` says whether a job needs one:

- `off`: no job needs one;
- `named`: a job that names a `data_snapshot` needs its approval;
- `required`: so does every job, and it must name one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import StringConstraints

from gangline_schemas.job import JobSpec

_NAME = "[a-z0-9][a-z0-9._-]{0,62}"
_NAMED_BY_CONTENT = rf"^{_NAME}@(xxh3-[0-9a-f]{{32}}|sha256-[0-9a-f]{{64}})$"
SnapshotName = Annotated[str, StringConstraints(pattern=_NAMED_BY_CONTENT)]
DatasetName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]
"""The name that the snapshots of one data set share: the part before the @."""
_MOST_PURPOSES = 5


def dataset_of(snapshot: str) -> str:
    """The data set of a snapshot."""
    return snapshot.partition("@")[0]


class ApprovalRule(StrEnum):
    """Which jobs need an approval of their data; see above."""

    OFF = "off"
    NAMED = "named"
    REQUIRED = "required"


class DataUse(NamedTuple):
    """A snapshot, and what it is used for."""

    snapshot: str
    project: str
    purpose: str


def named_by_content(snapshot: str) -> bool:
    """Whether a name says which bytes are meant."""
    return re.fullmatch(_NAMED_BY_CONTENT, snapshot) is not None


def cannot_use(rule: ApprovalRule, approved: Collection[DataUse], spec: JobSpec) -> str | None:
    """Why a job may not use the data that it names; None when it may. Field first, way out last."""
    snapshot = spec.data_snapshot
    if rule is ApprovalRule.OFF or (snapshot is None and rule is ApprovalRule.NAMED):
        return None
    if snapshot is None:
        return "data_snapshot: is needed here; name the snapshot that `gangline data show` prints"
    if not named_by_content(snapshot):
        return (
            f"data_snapshot: '{snapshot}' is not named by its content, so it cannot be approved; "
            "give the whole name that `gangline data show` prints (CORPUS@xxh3-...)"
        )
    for field, value in (("project", spec.project), ("purpose", spec.purpose)):
        if not value:
            return f"{field}: is needed with data_snapshot, which is approved for each {field}"
    wanted = DataUse(snapshot, spec.project or "", spec.purpose or "")
    if wanted in approved:
        return None
    return _refusal(wanted, approved)


def _refusal(wanted: DataUse, approved: Collection[DataUse]) -> str:
    purposes = sorted(
        use.purpose
        for use in approved
        if (use.snapshot, use.project) == (wanted.snapshot, wanted.project)
    )
    more = ", ..." if len(purposes) > _MOST_PURPOSES else ""
    known = f"it is for: {', '.join(purposes[:_MOST_PURPOSES])}{more}; " if purposes else ""
    command = ["gangline", "data", "approve", wanted.snapshot]
    command += ["--project", wanted.project, "--purpose", wanted.purpose]
    return (
        f"data_snapshot: {wanted.snapshot} is not approved for project '{wanted.project}' and "
        f"purpose '{wanted.purpose}'; {known}an admin approves it with: {shlex.join(command)}"
    )
