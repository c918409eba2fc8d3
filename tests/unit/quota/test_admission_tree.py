"""Admission over a tree of teams: which jobs can never run, and which must wait."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_quota.core.decide import Quota
from gangline_quota.core.state import State
from gangline_schemas.events.admin import TeamsConfigureRequested
from gangline_schemas.events.quota import GangMetered, JobAdmitted, JobRejected
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import Drive, only, spec
from support.builders.gangs import assigned, gang_allocated

TEAMS = [
    {
        "team": "lab",
        "gpu_limit": 64,
        "gpu_guarantee": 32,
        "gpu_types": {"h100": 16, "a100": 40},
        "gpu_hours_per_month": 1000,
    },
    {"team": "nlp", "parent": "lab", "gpu_limit": 64, "borrow_limit": 32},
    {"team": "speech", "parent": "nlp", "gpu_limit": 8, "borrow_limit": 4},
    {"team": "vision", "parent": "lab", "gpu_limit": 64, "gpu_types": ["a100"]},
    {"team": "other", "gpu_limit": 100},
]


@pytest.fixture
def quota() -> Drive[State]:
    drive = Drive(Quota())
    teams = tuple(TeamConfig.model_validate(team) for team in TEAMS)
    drive.give(TeamsConfigureRequested(teams=teams))
    return drive


def allocate(drive: Drive[State], job_id: str, team: str, gpus: int) -> None:
    gang = gang_allocated(job_id, spec(team, gpus=gpus), assigned(gpus=range(gpus)))
    only(drive.give(gang), GangMetered)


@pytest.mark.parametrize(
    ("team", "resources", "fields", "reason"),
    [
        ("nlp", {"gpus": 96}, {}, "would exceed quota: 96/64 GPUs of team lab"),
        ("speech", {"gpus": 13}, {}, "would exceed quota: 13/12 GPUs of team speech"),
        (
            "nlp",
            {"gpus": 96, "min_gpus": 80},
            {},
            "would exceed quota: 80/64 GPUs of team lab even at its min_gpus",
        ),
        (
            "vision",
            {"gpus": 1, "gpu_type": ["H100", "l4"]},
            {},
            "team vision may not use h100 or l4; it may use a100",
        ),
        (
            "nlp",
            {"gpus": 17, "gpu_type": "h100-80gb"},
            {},
            "would exceed quota: 17/16 h100 GPUs of team lab",
        ),
        (
            "nlp",
            {"gpus": 17, "gpu_type": "h100"},
            {},
            "would exceed quota: 17/16 h100 GPUs of team lab",
        ),
        (
            "nlp",
            {"gpus": 41, "gpu_type": ["h100", "a100"]},
            {},
            "would exceed quota: 41/40 a100 GPUs of team lab",
        ),
        (
            "nlp",
            {"gpus": 57},
            {},
            "would exceed quota: 57/56 GPUs of all models that team nlp may use (a100, h100)",
        ),
        (
            "nlp",
            {"gpus": 40},
            {"max_runtime_hours": 25.5},
            (
                "would exceed quota: 1020/1000 GPU-hours a month of team lab "
                "(40 GPUs for max_runtime_hours 25.5)"
            ),
        ),
        (
            "nlp",
            {"gpus": 40},
            {"max_runtime_hours": 2, "expected_runtime_hours": 30},
            (
                "would exceed quota: 1200/1000 GPU-hours a month of team lab "
                "(40 GPUs for expected_runtime_hours 30)"
            ),
        ),
    ],
)
def test_what_never_fits_is_rejected_with_numbers(
    quota: Drive[State],
    team: str,
    resources: dict[str, object],
    fields: dict[str, object],
    reason: str,
) -> None:
    job = spec(team, resources=resources, **fields)

    assert only(quota.give(JobSubmitted(job_id="a", spec=job)), JobRejected).reason == reason


@pytest.mark.parametrize(
    ("team", "resources", "fields"),
    [
        ("nlp", {"gpus": 96, "min_gpus": 16}, {}),
        ("nlp", {"gpus": 41, "min_gpus": 40, "gpu_type": ["h100", "a100"]}, {}),
        ("nlp", {"gpus": 56}, {}),
        ("nlp", {"gpus": 40}, {"max_runtime_hours": 25}),
        ("nlp", {"gpus": 40}, {"max_runtime_hours": 999, "expected_runtime_hours": 25}),
        ("nlp", {"gpus": 80, "min_gpus": 2}, {"max_runtime_hours": 500}),
        ("vision", {"gpus": 40, "gpu_type": ["h100", "A100"]}, {}),
        ("other", {"gpus": 100, "gpu_type": "anything"}, {"max_runtime_hours": 8000}),
    ],
)
def test_what_may_fit_is_admitted(
    quota: Drive[State], team: str, resources: dict[str, object], fields: dict[str, object]
) -> None:
    decided = quota.give(JobSubmitted(job_id="a", spec=spec(team, resources=resources, **fields)))

    assert only(decided, JobAdmitted).note is None


def test_a_job_that_must_wait_or_borrow_is_told_so(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="big", spec=spec("vision", gpus=40)))
    allocate(quota, "big", "vision", 40)

    def note(team: str, gpus: int) -> str | None:
        job = JobSubmitted(job_id=f"{team}-{gpus}", spec=spec(team, gpus=gpus))
        return only(quota.give(job), JobAdmitted).note

    assert note("nlp", 24) is None
    assert note("nlp", 25) == (
        "must wait: team lab has 40 of the 64 GPUs that it may ever use, and the job needs 25"
    )
    assert note("speech", 12) == (
        "must borrow 4 GPUs above the 8 of team speech: it starts while no other team waits for "
        "what it is guaranteed"
    )


def test_a_job_of_a_team_without_budget_waits_for_the_month(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="big", spec=spec("vision", gpus=40)))
    allocate(quota, "big", "vision", 40)
    quota.tick(25 * 3600 + 1.8)

    waits = only(quota.give(JobSubmitted(job_id="a", spec=spec("speech"))), JobAdmitted)
    free = only(quota.give(JobSubmitted(job_id="b", spec=spec("other"))), JobAdmitted)
    quota.now += timedelta(days=30)
    quota.tick()
    later = only(quota.give(JobSubmitted(job_id="c", spec=spec("speech"))), JobAdmitted)

    assert waits.note == (
        "must wait: team lab has spent 1000.02 of its 1000 GPU-hours of 2026-11; jobs start again "
        "with the next month (UTC), or when gpu_hours_per_month is raised"
    )
    assert free.note is None
    assert later.note is not None, "40 GPUs have spent December's budget too"
