"""The list of jobs: its filters, its orders, and pages that neither repeat nor skip a job."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_gateway.followed import Copies
from gangline_gateway.job_list import JobFilter, OrderBy, counts, page
from gangline_gateway.live import Live
from gangline_gateway.live_model import LiveFacts, LiveJob
from gangline_gateway.live_view import LiveView
from gangline_gateway.problems import ProblemError
from gangline_schemas.job import JobSpec
from gangline_service.tokens import Principal, Role
from support.builders.read_model import NOW

ADMIN = Principal(name="root", role=Role.ADMIN, teams=frozenset())
NLP = Principal(name="ada", role=Role.MEMBER, teams=frozenset({"nlp"}))
ORDERS: tuple[OrderBy, ...] = ("created", "started", "priority", "gpus")


def job(job_id: str, minutes: int = 0, **fields: object) -> LiveJob:
    spec = JobSpec.model_validate(
        {
            "name": "train", "team": "nlp", "project": fields.pop("project", None),
            "command": ["python", "Train.py"], "resources": {"gpus": 1},
        }
    )  # fmt: skip
    values: dict[str, object] = {
        "team": "nlp", "name": job_id, "user": "ada", "state": "pending",
        "submitted_at": NOW + timedelta(minutes=minutes), "spec": spec,
    }  # fmt: skip
    return LiveJob(job_id=job_id, **{**values, **fields})  # type: ignore[arg-type]


def view(*jobs: LiveJob) -> LiveView:
    live = Live.of(LiveFacts(jobs={one.job_id: one for one in jobs}))
    return LiveView(live, Copies([]), Copies([]))


def ids(found: tuple[list[LiveJob], str | None]) -> list[str]:
    return [one.job_id for one in found[0]]


JOBS = (
    job("a", 0, priority=10, gpus=4, started_at=NOW + timedelta(minutes=9), state="running"),
    job("b", 1, priority=0, gpus=8, user="Bob", project="p"),
    job("c", 2, priority=10, gpus=8, started_at=NOW + timedelta(minutes=5), state="failed"),
    job("d", 3, priority=50, team="vision", spec=None),
)


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [("created", "dcba"), ("started", "acdb"), ("priority", "bcad"), ("gpus", "cbad")],
)
def test_orders_and_the_same_the_other_way_round(order_by: OrderBy, expected: str) -> None:
    shown = view(*JOBS)
    found = page(shown, ADMIN, JobFilter(), order_by=order_by, limit=10)
    assert ids(found) == list(expected)
    back = page(shown, ADMIN, JobFilter(), order_by=order_by, reverse=True, limit=10)
    assert ids(back) == list(reversed(expected))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (JobFilter(project="p"), "b"),
        (JobFilter(text="BOB"), "b"),
        (JobFilter(text="n train.PY"), ""),
        (JobFilter(text="train.PY"), "cba"),
        (JobFilter(text="d"), "dca"),
        (JobFilter(team="vision"), "d"),
        (JobFilter(states=frozenset({"failed", "running"})), "ca"),
        (JobFilter(user="ada", name="a"), "a"),
    ],
)
def test_filters(wanted: JobFilter, expected: str) -> None:
    assert ids(page(view(*JOBS), ADMIN, wanted, limit=10)) == list(expected)


def test_counts_are_of_the_caller_s_teams_and_of_all_states() -> None:
    only = JobFilter(states=frozenset({"failed"}))
    assert counts(view(*JOBS), NLP, only) == {"running": 1, "pending": 1, "failed": 1}
    assert counts(view(*JOBS), ADMIN, JobFilter(text="ada")).total() == 3
    assert ids(page(view(*JOBS), NLP, JobFilter(), limit=10)) == ["c", "b", "a"]


@given(
    seed=st.integers(0, 2**32),
    order_by=st.sampled_from(ORDERS),
    reverse=st.booleans(),
    limit=st.integers(1, 7),
)
def test_pages_have_every_job_once_also_when_others_come_and_go(
    seed: int, order_by: OrderBy, reverse: bool, limit: int
) -> None:
    chance = random.Random(seed)

    def some(name: str) -> LiveJob:
        started = chance.choice([None, NOW + timedelta(minutes=chance.randrange(3))])
        fields = {"priority": chance.randrange(3), "gpus": chance.randrange(3)}
        return job(name, chance.randrange(3), started_at=started, **fields)

    stays = [some(f"j{number}") for number in range(20)]
    seen: list[str] = []
    cursor = None
    for number in range(100):
        comes = [some(f"x{number}-{each}") for each in range(3)]
        found, cursor = page(
            view(*stays, *comes), ADMIN, JobFilter(), order_by=order_by, reverse=reverse,
            limit=limit, cursor=cursor,
        )  # fmt: skip
        assert len(found) <= limit
        seen += [one.job_id for one in found if one.job_id.startswith("j")]
        if cursor is None:
            break
    assert sorted(seen) == sorted(one.job_id for one in stays)


@pytest.mark.parametrize("cursor", ["", "x", "1.2", "1.2.", "1.2.A", "1.-2.a", f"1.{9**20}.a"])
def test_a_wrong_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ProblemError, match="cursor"):
        page(view(*JOBS), ADMIN, JobFilter(), limit=1, cursor=cursor)
