"""Teams as the gateway shows them: limits and charged time as quota's own state has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gangline_gateway.live_view import LiveView
from gangline_gateway.teams import teams
from gangline_schemas.base import Event
from gangline_schemas.events.quota import GangMetered, JobAdmitted, TeamConfigured, UsageCharged
from gangline_schemas.events.scheduling import (
    JobQueued,
    NodeAdmitted,
)
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import spec
from support.builders.gangs import assigned, gang_allocated
from support.builders.read_model import ReadModel
from support.builders.scheduler import node

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def after(*events: Event) -> LiveView:
    model = ReadModel()
    for event in events:
        model.apply(event, NOW)
    return model.view()


def admitted(job_id: str) -> JobAdmitted:
    return JobAdmitted(job_id=job_id, spec=spec("nlp", 2), user="u", submitted_at=NOW)


def queued(job_id: str) -> JobQueued:
    return JobQueued(job_id=job_id, spec=spec("nlp", 2), user="u", submitted_at=NOW)


def metered(job_id: str, since: datetime) -> GangMetered:
    return GangMetered(job_id=job_id, attempt=1, team="nlp", gpus=2, allocated_at=since)


def charged(job_id: str, since: datetime, until: datetime) -> UsageCharged:
    return UsageCharged(
        job_id=job_id, attempt=1, team="nlp", gpus=2, allocated_at=since, released_at=until,
        gpu_seconds=2 * (until - since).total_seconds(),
    )  # fmt: skip


def test_teams_show_limits_and_use_with_those_below_them() -> None:
    lab = TeamConfig(team="lab", gpu_limit=8, gpu_hours_per_month=0.01)
    nlp = TeamConfig(team="nlp", parent="lab", gpu_limit=1, gpu_guarantee=1, borrow_limit=1)
    since = NOW - timedelta(seconds=15)
    events = (
        TeamConfigured(config=lab), TeamConfigured(config=nlp), admitted("a"), admitted("b"),
        admitted("c"), metered("a", since), charged("a", since, NOW), metered("b", NOW),
    )  # fmt: skip
    joined = NodeAdmitted(node=node("n0"))
    runs = gang_allocated("b", spec("nlp", 2), assigned("n0"))
    live = after(*events, joined, queued("b"), queued("c"), runs)  # "a" is not queued yet

    above, below = teams(live, NOW + timedelta(seconds=2), None)

    assert [(team.team, team.depth) for team in (above, below)] == [("lab", 0), ("nlp", 1)]
    for team in (above, below):
        assert (team.gpus_used, team.jobs_running, team.jobs_pending) == (2, 1, 2)
        assert team.gpu_seconds == 30
        assert team.gpu_hours_this_month == pytest.approx(34 / 3600)
    assert (above.gpus_borrowed, below.gpus_borrowed) == (0, 1)
    assert not above.out_of_budget
    assert teams(live, NOW + timedelta(seconds=3), None)[0].out_of_budget
    (only,) = teams(live, NOW, frozenset({"nlp"}))
    assert only.parent == "lab"
    assert teams(live, NOW, frozenset({"vision"})) == []


def test_a_new_month_begins_at_zero_and_the_total_goes_on() -> None:
    end = datetime(2026, 12, 1, tzinfo=UTC)
    since, until = end - timedelta(hours=3), end + timedelta(hours=1)
    live = after(
        TeamConfigured(config=TeamConfig(team="nlp", gpu_limit=8)), admitted("a"),
        metered("a", since), charged("a", since, until),
    )  # fmt: skip
    (december,) = teams(live, end + timedelta(hours=2), None)
    (january,) = teams(live, end + timedelta(days=32), None)
    assert (december.month, december.gpu_hours_this_month) == ("2026-12", 2.0)
    assert (january.month, january.gpu_hours_this_month) == ("2027-01", 0.0)
    assert december.gpu_seconds == january.gpu_seconds == 8 * 3600
