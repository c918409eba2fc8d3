"""The usage ledger: every GPU-second once, and the fold gives it again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_quota.core.decide import Quota
from gangline_quota.core.invariants import ledger_broken
from gangline_quota.core.snapshot import fingerprint
from gangline_quota.core.state import EARLIER, MONTHS_KEPT, State
from gangline_schemas import gpu_time
from gangline_schemas.base import Event
from gangline_schemas.events.admin import TeamConfigureRequested, TeamsConfigureRequested
from gangline_schemas.events.quota import GangMetered, UsageCharged
from gangline_schemas.events.requests import JobCancelRequested, JobPriorityRequested, JobSubmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobStateChanged,
    ReleaseReason,
)
from gangline_schemas.job import JobState
from gangline_schemas.memory import IDS_REMEMBERED
from gangline_schemas.team_limits import TeamConfig
from gangline_schemas.teams import line, rolled_up
from support.builders.deciding import Drive, only, spec, team
from support.builders.gangs import assigned, gang_allocated, gang_released


def allocated(
    drive: Drive[State], job_id: str, gpus: int, attempt: int = 1, team_name: str = "nlp"
) -> GangAllocated:
    part = assigned(gpus=range(gpus))
    return gang_allocated(job_id, spec(team_name, gpus=gpus), part, attempt=attempt)


def released(drive: Drive[State], job_id: str, attempt: int = 1) -> GangReleased:
    return gang_released(job_id, attempt, drive.now, ReleaseReason.SUCCEEDED, 1.0)


def ended(job_id: str) -> JobStateChanged:
    return JobStateChanged(
        job_id=job_id, attempt=1, previous=JobState.RUNNING, state=JobState.SUCCEEDED
    )


def chosen(drive: Drive[State], kind: str, job_id: str, number: int, team_name: str) -> Event:
    match kind:
        case "submit":
            return JobSubmitted(job_id=job_id, spec=spec(team_name, gpus=number))
        case "cancel":
            return JobCancelRequested(job_id=job_id)
        case "priority":
            return JobPriorityRequested(job_id=job_id, priority=number)
        case "allocate":
            return allocated(drive, job_id, gpus=number, attempt=number, team_name=team_name)
        case "release":
            return released(drive, job_id, number)
        case _:
            return ended(job_id)


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
    assert quota.state.spent_us == {("nlp", "2026-11"): 4 * 90_500_000}


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
    quota.give(ended("a"))

    assert only(quota.give(released(quota, "a")), UsageCharged).gpu_seconds == 40
    assert quota.state.meters == {}


def test_a_gang_over_a_months_end_is_split_exactly(quota: Drive[State]) -> None:
    quota.now = datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    quota.give(allocated(quota, "a", gpus=3))
    quota.now = datetime(2027, 2, 1, 0, 0, 0, 1, tzinfo=UTC)
    quota.give(released(quota, "a"))

    january = 3 * 31 * 24 * 3600 * 1_000_000
    assert quota.state.spent_us == {
        ("nlp", "2026-12"): 3,
        ("nlp", "2027-01"): january,
        ("nlp", "2027-02"): 3,
    }


def test_months_long_ago_are_one_sum_however_long_a_team_works(quota: Drive[State]) -> None:
    used_us = 0
    quota.now = datetime(2026, 11, 1, tzinfo=UTC)
    for attempt in range(1, 40):
        quota.give(allocated(quota, "a", gpus=4, attempt=attempt))
        quota.now += timedelta(days=31)  # over each month's end
        quota.give(released(quota, "a", attempt=attempt))
        used_us += 4 * 31 * 24 * 3600 * 1_000_000
        assert len(quota.state.spent_us) <= MONTHS_KEPT + 1

    month = gpu_time.month_of(quota.now)
    first, last = quota.now.replace(day=1), [month]
    while len(last) < MONTHS_KEPT:
        first = (first - timedelta(days=1)).replace(day=1)
        last.append(gpu_time.month_of(first))
    assert set(quota.state.spent_us) == {("nlp", name) for name in [*last, EARLIER]}
    assert sum(quota.state.spent_us.values()) == used_us
    days = gpu_time.by_month(4, quota.now - timedelta(days=31), quota.now)
    assert quota.state.spent_us["nlp", month] == dict(days)[month]
    assert ledger_broken(quota.state) == []


def test_a_clock_that_went_back_charges_nothing(quota: Drive[State]) -> None:
    quota.give(allocated(quota, "a", gpus=4))
    quota.now -= timedelta(seconds=1)

    assert only(quota.give(released(quota, "a")), UsageCharged).gpu_seconds == 0
    assert quota.state.spent_us == {}


def test_the_attempts_of_a_job_add_up(quota: Drive[State]) -> None:
    for attempt in (1, 2, 3):
        quota.give(allocated(quota, "a", gpus=4, attempt=attempt))
        quota.now += timedelta(seconds=attempt)
        quota.give(released(quota, "a", attempt))

    assert quota.state.active["a"].gpu_us == 4 * (1 + 2 + 3) * 1_000_000
    assert ledger_broken(quota.state) == []


@pytest.mark.parametrize("late", [False, True])
def test_jobs_that_are_forgotten_still_add_up(quota: Drive[State], *, late: bool) -> None:
    for job_id in ("a", "b", "c"):
        quota.now += IDS_REMEMBERED
        quota.give(JobSubmitted(job_id=job_id, spec=spec(gpus=4)))
        quota.give(allocated(quota, job_id, gpus=4))
        quota.now += timedelta(seconds=1)
        last = [ended(job_id), released(quota, job_id)]
        for event in last[:1] if late else reversed(last):
            quota.give(event)
    for job_id in ("a", "b", "c") if late else ():
        quota.give(released(quota, job_id))

    assert list(quota.state.ended) == ["c"]
    remembered = quota.state.ended["c"].gpu_us
    assert quota.state.totals_us["forgotten"] == quota.state.totals_us["charged"] - remembered > 0
    assert ledger_broken(quota.state) == []


PARENTS = {"lab": None, "nlp": "lab", "cv": "lab", "speech": "nlp", "other": None}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["submit", "cancel", "priority", "end", "tick", "restart"] + ["allocate", "release"] * 4
        ),
        st.integers(0, 4),
        st.integers(1, 3),
        st.integers(0, 40 * 24 * 3600 * 1_000_000),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_jobs_teams_and_the_allocated_integral_are_equal(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Whatever comes, again and in any order, also over restarts: every sum is the same number."""
    drive = Drive(Quota())
    drive.give(
        TeamsConfigureRequested(
            teams=tuple(
                TeamConfig(team=name, parent=parent, gpu_limit=64, gpu_hours_per_month=900)
                for name, parent in PARENTS.items()
            )
        )
    )
    for number, name in enumerate(PARENTS):
        drive.give(JobSubmitted(job_id=f"j{number}", spec=spec(name)))
    live: dict[tuple[str, int], tuple[int, datetime]] = {}
    integral = dict.fromkeys(PARENTS, 0)
    for kind, number, attempt, later_us in steps:
        drive.now += timedelta(microseconds=later_us)
        job_id, team_name = f"j{number}", list(PARENTS)[number]
        if kind == "restart":
            drive.state = drive.replayed()
            continue
        if kind == "tick":
            drive.tick()
            continue
        event = chosen(drive, kind, job_id, attempt, team_name)
        for decided in drive.give(event, ce_id=f"{kind}-{number}-{attempt}"):
            if isinstance(decided, GangMetered):
                live[decided.job_id, decided.attempt] = (decided.gpus, drive.now)
            if isinstance(decided, UsageCharged):
                gpus, since = live.pop((decided.job_id, decided.attempt))
                elapsed = (drive.now - since) // timedelta(microseconds=1)
                for name in (config.team for config in line(drive.state.teams, team_name)):
                    integral[name] += gpus * elapsed
        assert ledger_broken(drive.state) == []

    own: dict[str, int] = {}
    for (name, _), amount in drive.state.spent_us.items():
        own[name] = own.get(name, 0) + amount
    assert rolled_up(drive.state.teams, own) == integral
    assert drive.state.totals_us.get("charged", 0) == integral["lab"] + integral["other"]
    assert set(drive.state.meters) == set(live)
    assert fingerprint(drive.replayed()) == fingerprint(drive.state)
