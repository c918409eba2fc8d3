"""A dry run says what quota decides, by quota's own functions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gangline_bus.codec import Received
from gangline_bus.decision import Decision
from gangline_gateway.admission import quota_notes
from gangline_gateway.gate import Gate
from gangline_gateway.history import PastRun
from gangline_gateway.live import Live
from gangline_gateway.live_view import LiveView
from gangline_quota.core.decide import Quota
from gangline_schemas.api.runs import Run
from gangline_schemas.base import Event
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.quota import (
    JobAdmitted,
    JobRejected,
    SnapshotApproved,
    TeamConfigured,
    UsageCharged,
)
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import JobQueued, JobStateChanged
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig

NOW = datetime(2026, 11, 20, tzinfo=UTC)
DATA = "corpus@xxh3-" + "0" * 32


class Asked:
    """Stands for history: one run of the team nlp, and how often it was asked for runs."""

    def __init__(self) -> None:
        self.times = 0

    def run(self, job_id: str, teams: frozenset[str]) -> PastRun | None:
        self.times += 1
        if job_id != "years-ago" or "nlp" not in teams:
            return None
        run = Run(
            run_id=job_id, team="nlp", project="", name="a", user="u", state="succeeded", reason="",
            attempt=1, restarts=0, gpus=1, priority=50, submitted_at=NOW, started_at=NOW,
            ended_at=NOW, gpu_seconds=1.0, strategy="custom", code_ref="", data_snapshot="",
            hyperparameters={},
        )  # fmt: skip
        return PastRun(run, "{}")


def spec(**fields: Any) -> JobSpec:
    small = {"name": "j", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    return JobSpec.model_validate(small | fields)


def team(**limits: Any) -> TeamConfigured:
    return TeamConfigured(
        config=TeamConfig.model_validate({"team": "nlp", "gpu_limit": 8} | limits)
    )


def queued(job_id: str, **fields: Any) -> JobQueued:
    return JobQueued(job_id=job_id, spec=spec(**fields), user="u", submitted_at=NOW)


def notes(
    job: JobSpec,
    *events: Event,
    rule: ApprovalRule = ApprovalRule.OFF,
    asked: Asked | None = None,
) -> tuple[list[str], bool]:
    live = Live()
    for event in events or (team(),):
        live.apply(Envelope("e", "/t", NOW, "s", event))
    history = SimpleNamespace(history=asked or Asked())
    gate = SimpleNamespace(
        tail=SimpleNamespace(view=lambda: LiveView(live)),
        past=SimpleNamespace(ask=lambda question: question(history)),
        clock=lambda: NOW,
        data_approvals=rule,
    )
    return quota_notes(cast("Gate", gate), job)


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
    found, rejected = notes(spec(**fields), team(**limits), queued("one"))
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


def test_runs_that_live_ended_or_are_in_history_are_resumed_from() -> None:
    asked = Asked()
    ended = JobStateChanged(job_id="b", attempt=0, previous="pending", state="cancelled")
    known = (team(), queued("a"), queued("b"), ended)
    for source in ("a", "b"):
        assert notes(spec(resume_from=source), *known, asked=asked) == ([], False)
    assert asked.times == 0
    assert notes(spec(resume_from="years-ago"), asked=asked) == ([], False)
    assert asked.times == 1
    foreign = queued("theirs", team="vision")
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
    spent = UsageCharged(
        job_id="old", attempt=1, team="nlp", gpus=8, allocated_at=NOW - timedelta(hours=2),
        released_at=NOW, gpu_seconds=57_600.0,
    )  # fmt: skip
    (told,), rejected = notes(spec(), team(gpu_hours_per_month=10), spent)
    assert (told.startswith("the job must wait: team nlp has spent 16 of its 10"), rejected) == (
        True, False,
    )  # fmt: skip
    below = [team(team="lab", gpu_limit=16, gpu_hours_per_month=10), team(parent="lab"), spent]
    (told,), rejected = notes(spec(), *below)
    assert (told.startswith("the job must wait: team lab has spent 16 of its 10"), rejected) == (
        True, False,
    )  # fmt: skip
