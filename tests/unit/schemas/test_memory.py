"""What has ended is forgotten by one rule, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gangline_bus.overlay import Overlay
from gangline_schemas.memory import IDS_REMEMBERED, REMEMBERED, forget_old, keep_newest

NOW = datetime(2026, 11, 24, tzinfo=UTC)


def test_only_what_ended_longer_ago_than_the_rule_says_is_forgotten() -> None:
    ended = {
        "old": NOW - REMEMBERED - timedelta(seconds=1),
        "edge": NOW - REMEMBERED,
        "new": NOW,
    }
    forgotten = forget_old(ended, lambda at: at, NOW)
    assert [job_id for job_id, _ in forgotten] == ["old"]
    assert list(ended) == ["edge", "new"]


def test_nothing_is_forgotten_when_the_clock_went_back() -> None:
    ended = {"a": NOW}
    assert forget_old(ended, lambda at: at, NOW - timedelta(days=90)) == []
    assert list(ended) == ["a"]


class Counted(dict[str, datetime]):
    """Counts the keys that are passed over."""

    passed = 0

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.passed += 1
            yield key


@pytest.mark.parametrize("kept", [0, 10])
def test_many_are_forgotten_at_once_in_one_pass(kept: int) -> None:
    """After weeks without an end, the first one forgets all that ended before them."""
    below = Counted({f"job-{number}": NOW for number in range(1000)})
    forget_old(Overlay(below), lambda at: at, NOW + REMEMBERED * 2)
    assert below.passed <= 1000
    below.passed = 0
    keep_newest(Overlay(below), kept)
    assert below.passed <= 1000


def test_quota_is_the_last_to_forget_an_id() -> None:
    assert IDS_REMEMBERED > REMEMBERED
