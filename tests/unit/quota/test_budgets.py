"""Monthly budgets: reported once when they are spent, and once when there is room again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import fingerprint
from gangline_quota.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.events.admin import TeamConfigureRequested, TeamsConfigureRequested
from gangline_schemas.events.quota import TeamBudgetChanged
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import (
    ReleaseReason,
)
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import Drive, every, spec
from support.builders.gangs import assigned, gang_allocated, gang_released

LAB = TeamConfig(team="lab", gpu_limit=64, gpu_hours_per_month=10)
NLP = TeamConfig(team="nlp", gpu_limit=64, parent="lab")
HOUR = timedelta(hours=1)


@pytest.fixture
def quota() -> Drive[State]:
    drive = Drive(Quota())
    drive.now = datetime(2026, 11, 30, 20, tzinfo=UTC)
    drive.give(TeamsConfigureRequested(teams=(LAB, NLP)))
    drive.give(JobSubmitted(job_id="a", spec=spec("nlp", gpus=4)))
    return drive


def start(drive: Drive[State], attempt: int = 1) -> list[Event]:
    gang = gang_allocated("a", spec("nlp", gpus=4), assigned(gpus=range(4)), attempt=attempt)
    return drive.give(gang)


def stop(drive: Drive[State], attempt: int = 1) -> list[Event]:
    return drive.give(gang_released("a", attempt, drive.now, ReleaseReason.SUCCEEDED, 1))


def told(events: list[Event]) -> list[tuple[str, str, bool, float]]:
    return [
        (event.team, event.month, event.exhausted, event.spent_gpu_hours)
        for event in every(events, TeamBudgetChanged)
    ]


def test_a_long_gang_spends_the_budget_of_the_team_above_and_it_is_told_once(
    quota: Drive[State],
) -> None:
    start(quota)
    assert quota.tick(2.5 * 3600 - 0.001) == []
    assert told(quota.tick(0.001)) == [("lab", "2026-11", True, 10.0)]
    assert quota.tick(60) == []
    stop(quota)
    assert quota.tick(60) == []


def test_a_new_month_opens_the_budget_for_what_was_used_in_the_old_one(
    quota: Drive[State],
) -> None:
    start(quota)
    quota.tick(3 * 3600)
    assert told(quota.tick(2 * 3600)) == [("lab", "2026-12", False, 4.0)]
    assert told(quota.tick(1.5 * 3600)) == [("lab", "2026-12", True, 10.0)]
    stop(quota)
    assert fingerprint(quota.replayed()) == fingerprint(quota.state)


def test_a_budget_that_is_spent_anew_at_once_names_the_new_month(quota: Drive[State]) -> None:
    start(quota)
    quota.tick(3 * 3600)
    assert told(quota.tick(100 * 3600)) == [("lab", "2026-12", True, 396.0)]


@pytest.mark.parametrize("more", [11.0, None])
def test_a_budget_that_is_raised_or_taken_away_opens(
    quota: Drive[State], more: float | None
) -> None:
    start(quota)
    quota.tick(2.5 * 3600)
    raised = LAB.model_copy(update={"gpu_hours_per_month": more})
    quota.give(TeamConfigureRequested(config=raised))
    assert told(quota.tick()) == [("lab", "2026-11", False, 10.0)]
    assert quota.tick() == []


def test_charged_usage_counts_like_live_usage(quota: Drive[State]) -> None:
    start(quota)
    quota.now += 2 * HOUR
    stop(quota)
    lowered = LAB.model_copy(update={"gpu_hours_per_month": 8.0})
    quota.give(TeamConfigureRequested(config=lowered))
    assert told(quota.tick()) == [("lab", "2026-11", True, 8.0)]


def test_a_clock_that_was_months_ahead_opens_no_spent_budget_once_it_is_right(
    quota: Drive[State],
) -> None:
    start(quota)
    quota.tick(2.5 * 3600)
    right = quota.now
    stop(quota)
    quota.now += timedelta(days=200)
    start(quota, attempt=2)
    quota.now += HOUR
    stop(quota, attempt=2)
    assert told(quota.tick()) == [("lab", "2027-06", False, 4.0)]
    quota.now = right
    assert told(quota.tick()) == [("lab", "2026-11", True, 10.0)]


def test_nor_does_one_that_was_ahead_while_a_gang_ran(quota: Drive[State]) -> None:
    start(quota)
    quota.tick(2.5 * 3600)
    right = quota.now
    quota.now += timedelta(days=200)
    stop(quota)
    quota.now = right
    assert all(exhausted for _, _, exhausted, _ in told(quota.tick()))
    assert quota.state.budgets["lab"].exhausted
