"""Data is used only as approved: which jobs are refused, with which field and way out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_quota.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.events.admin import SnapshotApprovalRequested, TeamConfigureRequested
from gangline_schemas.events.quota import (
    JobAdmitted,
    JobRejected,
    SnapshotApproved,
    SnapshotWithdrawn,
)
from gangline_schemas.events.requests import JobSubmitted
from support.builders.deciding import Drive, only, spec, team

SNAPSHOT = "corpus@xxh3-0f343b0931126a20f133d67c2b018a3b"
OTHER = f"corpus@sha256-{'0' * 64}"
USE = {"project": "assistants", "purpose": "model-training"}


def quota(rule: ApprovalRule) -> Drive[State]:
    drive = Drive(Quota(rule))
    drive.give(TeamConfigureRequested(config=team("nlp", limit=64)))
    return drive


def approval(approve: bool = True, **changed: str) -> SnapshotApprovalRequested:
    return SnapshotApprovalRequested.model_validate(
        {"snapshot": SNAPSHOT, "approve": approve, "user": "ada", **USE, **changed}
    )


def submitted(job_id: str = "a", **fields: object) -> JobSubmitted:
    return JobSubmitted(job_id=job_id, spec=spec(**fields), user="bob")


def test_it_is_refused_until_it_is_approved_and_again_when_that_is_withdrawn() -> None:
    drive = quota(ApprovalRule.NAMED)
    named = {"data_snapshot": SNAPSHOT, **USE}
    rejected = only(drive.give(submitted("a", **named)), JobRejected)
    assert rejected.reason == (
        f"data_snapshot: {SNAPSHOT} is not approved for project 'assistants' and purpose "
        "'model-training'; an admin approves it with: gangline data approve "
        f"{SNAPSHOT} --project assistants --purpose model-training"
    )
    approved = only(drive.give(approval()), SnapshotApproved)
    assert (approved.snapshot, approved.project, approved.user) == (SNAPSHOT, "assistants", "ada")
    assert drive.give(approval()) == []
    drive.state = drive.replayed()
    only(drive.give(submitted("b", **named)), JobAdmitted)
    for other in ({"project": "search"}, {"purpose": "evaluation"}, {"data_snapshot": OTHER}):
        only(drive.give(submitted(f"c-{next(iter(other))[:4]}", **named | other)), JobRejected)
    only(drive.give(approval(approve=False)), SnapshotWithdrawn)
    assert drive.give(approval(approve=False)) == []
    only(drive.give(submitted("d", **named)), JobRejected)
    assert drive.state.active.keys() == {"b"}, "what was admitted goes on"


def test_the_refusal_says_what_the_data_is_for() -> None:
    drive = quota(ApprovalRule.NAMED)
    drive.give(approval(purpose="evaluation"))
    drive.give(approval(purpose="safety tests"))
    drive.give(approval(project="search", purpose="ranking"))
    rejected = only(drive.give(submitted(data_snapshot=SNAPSHOT, **USE)), JobRejected)
    assert "; it is for: evaluation, safety tests; an admin" in rejected.reason
    quoted = only(
        drive.give(submitted("b", data_snapshot=SNAPSHOT, **USE | {"purpose": "my own"})),
        JobRejected,
    )
    assert quoted.reason.endswith("--project assistants --purpose 'my own'")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"data_snapshot": "corpus", **USE}, "data_snapshot: 'corpus' is not named by its content"),
        ({"data_snapshot": SNAPSHOT, "purpose": "x"}, "project: is needed with data_snapshot"),
        ({"data_snapshot": SNAPSHOT, "project": "x"}, "purpose: is needed with data_snapshot"),
        ({}, "data_snapshot: is needed here"),
    ],
)
def test_what_is_missing_is_named(fields: dict[str, str], says: str) -> None:
    rejected = only(quota(ApprovalRule.REQUIRED).give(submitted(**fields)), JobRejected)
    assert rejected.reason.startswith(says)


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        (ApprovalRule.OFF, {"data_snapshot": SNAPSHOT, **USE}),
        (ApprovalRule.OFF, {"data_snapshot": "my notes"}),
        (ApprovalRule.NAMED, {}),
    ],
)
def test_who_need_not_ask_is_admitted(rule: ApprovalRule, fields: dict[str, str]) -> None:
    admitted = only(quota(rule).give(submitted(**fields)), JobAdmitted)
    assert admitted.spec.data_snapshot == fields.get("data_snapshot")


def test_only_what_is_named_by_its_content_can_be_approved() -> None:
    for name in ("corpus", "corpus@v3", "corpus@xxh3-12", f"Corpus@{SNAPSHOT.partition('@')[2]}"):
        with pytest.raises(ValueError, match="snapshot"):
            approval(snapshot=name)
    approval(snapshot=OTHER)


def test_approvals_are_kept_in_a_snapshot_of_the_state() -> None:
    drive = quota(ApprovalRule.NAMED)
    drive.give(approval())
    kept = codec()
    assert kept.load(kept.dump(kept.copy(drive.state))) == drive.state


def test_the_examples_agree_with_each_other() -> None:
    folder = Path(__file__).parents[3] / "schemas" / "examples"
    asked = json.loads((folder / "snapshot.approval.requested.json").read_bytes())
    [decided] = quota(ApprovalRule.OFF).give(SnapshotApprovalRequested.model_validate(asked))
    told = json.loads((folder / "snapshot.approved.json").read_bytes())
    assert isinstance(decided, Event)
    whose = {"request_id": "", "request_source": ""}
    assert decided.data() | whose == told | whose
