"""A dry run says what quota decides, by quota's own functions."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline_bus.codec import Received
from gangline_bus.decision import Decision
from gangline_gateway.admission import quota_notes
from gangline_gateway.app_context import AppContext
from gangline_gateway.followed import Copies, NoStateError
from gangline_quota.core.decide import Quota
from gangline_schemas.base import Event
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import (
    JobAdmitted,
    JobClosed,
    JobRejected,
    SnapshotApproved,
    TeamBudgetChanged,
    TeamConfigured,
)
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.team_limits import TeamConfig

NOW = datetime(2026, 11, 20, tzinfo=UTC)
DATA = "corpus@xxh3-" + "0" * 32


def spec(**fields: Any) -> JobSpec:
    small = {"name": "j", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    return JobSpec.model_validate(small | fields)


def team(**limits: Any) -> TeamConfigured:
    return TeamConfigured(
        config=TeamConfig.model_validate({"team": "nlp", "gpu_limit": 8} | limits)
    )


def admitted(job_id: str, **fields: Any) -> JobAdmitted:
    return JobAdmitted(job_id=job_id, spec=spec(**fields), user="u", submitted_at=NOW)


def notes(
    job: JobSpec, *events: Event, rule: ApprovalRule = ApprovalRule.OFF
) -> tuple[list[str], bool]:
    """The dry run's answer after these events of quota's log."""
    quota = Quota(rule)
    state = quota.initial()
    for event in events or (team(),):
        state = quota.evolve(state, Decision("s", event), NOW)
    tail = SimpleNamespace(view=lambda: SimpleNamespace(quota=Copies([state])))
    app = SimpleNamespace(tail=tail, data_approvals=rule)
    return quota_notes(cast("AppContext", app), job)


def decided(limits: TeamConfigured, job: JobSpec) -> str:
    """What the decider itself answers to the submission."""
    quota = Quota()
    state = quota.evolve(quota.initial(), Decision("nlp", limits), NOW)
    event = JobSubmitted(job_id="j-1", spec=job, user="u")
    envelope = Envelope("r", "/t", NOW, "j-1", event)
    (decision,) = quota.decide(state, None, Received(envelope, "gangline.requests", 0, 0), NOW)
    assert not isinstance(decision.event, JobAdmitted)
    return cast("JobRejected", decision.event).reason


@pytest.mark.parametrize(
    ("limits", "fields", "reason"),
    [
        ({"gpu_types": [{"gpu_type": "a100"}]},
         {"resources": {"gpus": 4, "gpu_type": ["h100"]}}, "may not use h100"),
        ({"gpu_hours_per_month": 10},
         {"resources": {"gpus": 4}, "max_runtime_hours": 100}, "400/10 GPU-hours a month"),
        ({}, {"resume_from": "nope"}, "team nlp has no run 'nope'"),
        ({}, {"resources": {"gpus": 9}}, "would exceed quota: 9/8 GPUs"),
        ({"job_limit": 1}, {}, "its job_limit is 1"),
        ({}, {"team": "vision"}, "team 'vision' is not known"),
    ],
)  # fmt: skip
def test_what_quota_rejects_is_not_called_valid(
    limits: dict[str, Any], fields: dict[str, Any], reason: str
) -> None:
    found, rejected = notes(spec(**fields), team(**limits), admitted("one"))
    assert rejected
    assert reason in found[0]


def test_the_reason_is_the_one_that_quota_gives() -> None:
    limits, job = (
        team(gpu_types=[{"gpu_type": "a100"}]),
        spec(resources={"gpus": 2, "gpu_type": ["h100"]}),
    )
    (told,), _ = notes(job, limits)
    assert told == f"the job would be rejected: {decided(limits, job)}"


@pytest.mark.parametrize("rule", [ApprovalRule.NAMED, ApprovalRule.REQUIRED])
def test_data_needs_its_approval(rule: ApprovalRule) -> None:
    job = spec(project="p", purpose="x", data_snapshot=DATA)
    found, rejected = notes(job, rule=rule)
    assert rejected
    assert "is not approved" in found[0]
    given = SnapshotApproved(snapshot=DATA, project="p", purpose="x", user="root")
    assert notes(job, team(), given, rule=rule) == ([], False)
    assert notes(job) == ([], False)


def test_runs_that_quota_knows_are_resumed_from() -> None:
    closed = JobClosed(job_id="b", state=JobState.CANCELLED)
    known = (team(), admitted("a"), admitted("b"), closed)
    for source in ("a", "b"):
        assert notes(spec(resume_from=source), *known) == ([], False)
    assert "has no run 'c'" in notes(spec(resume_from="c"), *known)[0][0]
    foreign = admitted("theirs", team="vision")
    assert notes(spec(resume_from="theirs"), team(), foreign)[1]
    refused = JobRejected(
        job_id="bad", team="nlp", name="j", user="u", reason="no", submitted_at=NOW, errors=()
    )
    assert "was rejected" in notes(spec(resume_from="bad"), team(), refused)[0][0]


def test_a_job_that_must_wait_or_borrow_is_told_so() -> None:
    assert notes(spec(resources={"gpus": 8})) == ([], False)
    (told,), rejected = notes(spec(resources={"gpus": 10}), team(borrow_limit=4))
    assert not rejected
    assert told.startswith("the job must borrow 2 GPUs above the 8 of team nlp")
    for owner, line in {
        "nlp": [team(gpu_hours_per_month=10)],
        "lab": [team(team="lab", gpu_limit=16, gpu_hours_per_month=10), team(parent="lab")],
    }.items():
        spent = TeamBudgetChanged(
            team=owner, month="2026-11", exhausted=True, spent_gpu_hours=16, gpu_hours_per_month=10
        )
        (told,), rejected = notes(spec(), *line, spent)
        assert told.startswith(f"the job must wait: team {owner} has spent 16 of its 10")
        assert not rejected


def test_a_gateway_that_cannot_read_quota_s_log_does_not_guess() -> None:
    newer = SimpleNamespace(quota=Copies([], "upgrade the gateway"))
    tail = SimpleNamespace(view=lambda: newer)
    with pytest.raises(NoStateError, match="upgrade the gateway"):
        quota_notes(cast("AppContext", SimpleNamespace(tail=tail)), spec())
