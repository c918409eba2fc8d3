"""The usage ledger: every GPU-second once, and the fold gives it again."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_deciding import Drive, only, spec, team
from gangline_quota.decide import Quota
from gangline_quota.state import State, fingerprint
from gangline_schemas.base import Event
from gangline_schemas.events.quota import GangMetered, UsageCharged
from gangline_schemas.events.requests import (
    JobCancelRequested,
    JobPriorityRequested,
    JobSubmitted,
    TeamConfigureRequested,
)
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobStateChanged,
    NodeAssignment,
    ReleaseReason,
    Rendezvous,
)
from gangline_schemas.job import JobState


def allocated(drive: Drive[State], job_id: str, gpus: int, attempt: int = 1) -> GangAllocated:
    node = NodeAssignment(
        node_id="n", incarnation="i", address="::1", gpus=tuple(range(gpus)), first_rank=0
    )
    return GangAllocated(
        job_id=job_id,
        attempt=attempt,
        team="nlp",
        world_size=gpus,
        nodes=(node,),
        rendezvous=Rendezvous(address="::1", port=1),
        spec=spec(gpus=gpus),
    )


def released(drive: Drive[State], job_id: str, attempt: int = 1) -> GangReleased:
    return GangReleased(
        job_id=job_id,
        attempt=attempt,
        reason=ReleaseReason.SUCCEEDED,
        allocated_at=drive.now,
        gpu_seconds=1.0,
    )


def chosen(drive: Drive[State], kind: str, job_id: str, number: int) -> Event:
    match kind:
        case "submit":
            return JobSubmitted(job_id=job_id, spec=spec(gpus=number))
        case "cancel":
            return JobCancelRequested(job_id=job_id)
        case "priority":
            return JobPriorityRequested(job_id=job_id, priority=number)
        case "allocate":
            return allocated(drive, job_id, gpus=2, attempt=number)
        case "release":
            return released(drive, job_id, number)
        case _:
            return JobStateChanged(
                job_id=job_id, attempt=1, previous=JobState.RUNNING, state=JobState.SUCCEEDED
            )


@pytest.fixture
def quota() -> Drive[State]:
    drive = Drive(Quota())
    drive.give(TeamConfigureRequested(config=team()))
    drive.give(JobSubmitted(job_id="a", spec=spec(gpus=4)))
    return drive


def test_usage_is_gpus_times_seconds_between_the_two_events(quota: Drive[State]) -> None:
    assert only(quota.give(allocated(quota, "a", gpus=4)), GangMetered).gpus == 4
    quota.now += timedelta(seconds=90, milliseconds=500)

    charged = only(quota.give(released(quota, "a")), UsageCharged)

    assert charged.gpu_seconds == 4 * 90.5
    assert quota.state.teams["nlp"].gpu_seconds == 4 * 90.5


def test_repeated_events_charge_nothing(quota: Drive[State]) -> None:
    start = allocated(quota, "a", gpus=4)
    quota.give(start)
    assert quota.give(start) == []
    quota.now += timedelta(seconds=10)
    quota.give(released(quota, "a"))

    assert quota.give(released(quota, "a")) == []
    assert quota.give(start) == []


def test_a_release_after_the_end_is_charged_to_the_team(quota: Drive[State]) -> None:
    quota.give(allocated(quota, "a", gpus=4))
    quota.now += timedelta(seconds=10)
    quota.give(
        JobStateChanged(job_id="a", attempt=1, previous=JobState.RUNNING, state=JobState.SUCCEEDED)
    )

    assert only(quota.give(released(quota, "a")), UsageCharged).gpu_seconds == 40
    assert quota.state.meters == {}


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["submit", "cancel", "priority", "allocate", "release", "end"]),
            st.integers(0, 3),
            st.integers(1, 3),
        ),
        max_size=40,
    )
)
def test_the_log_folds_to_the_live_state(steps: list[tuple[str, int, int]]) -> None:
    drive = Drive(Quota())
    drive.give(TeamConfigureRequested(config=team()))
    charged = 0.0
    for kind, number, attempt in steps:
        job_id = f"j{number}"
        drive.now += timedelta(seconds=1)
        event = chosen(drive, kind, job_id, attempt)
        for decided in drive.give(event, ce_id=f"{kind}-{number}-{attempt}"):
            charged += decided.gpu_seconds if isinstance(decided, UsageCharged) else 0.0
    assert drive.state.teams["nlp"].gpu_seconds == charged
    assert fingerprint(drive.replayed()) == fingerprint(drive.state)
