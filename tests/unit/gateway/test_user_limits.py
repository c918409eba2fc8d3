"""A user has a rate, a burst and a number of unanswered requests; others do not feel it."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest

from gangline_gateway.problems import ProblemError
from gangline_gateway.user_limits import (
    RequestLimits,
    RequestRates,
    SharedSlots,
    UserSlots,
    current_user,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_user_that_asks_too_often_waits_and_others_do_not() -> None:
    clock = Clock()
    rates = RequestRates(RequestLimits(per_s=0.5, burst=3, at_once=10), clock)
    for _ in range(3):
        rates.begin("ada")
        rates.end("ada")
    with pytest.raises(ProblemError) as refused:
        rates.begin("ada")
    assert (refused.value.status, refused.value.code) == (429, "too-many")
    assert refused.value.headers == {"Retry-After": "2"}
    rates.begin("bob")
    clock.now_s = 2.0
    rates.begin("ada")


def test_a_large_body_costs_as_much_as_many_requests() -> None:
    clock = Clock()
    rates = RequestRates(RequestLimits(per_s=100, burst=300, at_once=10), clock)
    for _ in range(2):
        rates.begin("ada")
        for _part in range(16):
            rates.charge("ada", 64 << 10)
        rates.end("ada")
    with pytest.raises(ProblemError) as refused:
        rates.begin("ada")
    assert refused.value.headers == {"Retry-After": "3"}
    rates.begin("bob")
    rates.charge("bob", 1 << 30)
    rates.end("bob")
    clock.now_s = 3.1
    for user in ("ada", "bob"):
        rates.begin(user)


def test_users_that_come_no_more_are_forgotten() -> None:
    """Each job that logs to MLflow is a user."""
    clock = Clock()
    rates = RequestRates(RequestLimits(per_s=1, burst=2, at_once=10), clock)
    for number in range(5000):
        clock.now_s = number / 100
        rates.begin(f"job-{number}")
        rates.end(f"job-{number}")
    assert len(rates) <= 1000
    for _ in range(2):
        rates.begin("ada")
    for number in range(1000):
        rates.begin(f"another-{number}")
    with pytest.raises(ProblemError):
        rates.begin("ada")


def test_unanswered_requests_are_bounded_until_they_end() -> None:
    rates = RequestRates(RequestLimits(at_once=2), Clock())
    rates.begin("ada")
    rates.begin("ada")
    with pytest.raises(ProblemError, match="2 requests at once"):
        rates.begin("ada")
    rates.end("ada")
    rates.begin("ada")


def test_slots_are_given_back_whatever_happens() -> None:
    slots = UserSlots(1, "uploads")

    def fail() -> None:
        with slots.hold("ada"):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with (
        slots.hold("ada"),
        pytest.raises(ProblemError, match="1 uploads at once"),
        slots.hold("ada"),
    ):
        pass
    with slots.hold("ada"), slots.hold("bob"):
        pass


@pytest.mark.parametrize(("other", "status"), [("ada", 429), ("bob", 503)])
def test_questions_that_hold_threads_are_bounded_by_user_and_in_all(
    other: str, status: int
) -> None:
    places = SharedSlots(2, 2, "questions")

    def ask(user: str) -> AbstractContextManager[None]:
        current_user.set(user)
        return places.hold()

    with ask("ada"), ask("ada"), pytest.raises(ProblemError) as refused, ask(other):
        pass
    assert refused.value.status == status
    with ask(other):
        pass
