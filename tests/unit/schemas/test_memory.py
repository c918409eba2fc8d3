"""What has ended is forgotten by one rule, oldest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gangline_schemas.memory import IDS_REMEMBERED, REMEMBERED, forget_old

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


def test_quota_is_the_last_to_forget_an_id() -> None:
    assert IDS_REMEMBERED > REMEMBERED
