"""A group of viewers that is new has no earlier pieces, so no viewer resumes in it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from gangline_gateway import changes
from gangline_gateway.changes import Changes
from gangline_gateway.tail import Tail


class Quiet:
    """Collects nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def rows(self, _now_s: float, sights: Any) -> Any:
        return {sight: [] for sight in sights}


async def first_of(found: Changes, team: str, last_id: str | None) -> str:
    stream = found.follow(frozenset({team}), frozenset({"job"}), last_id)
    try:
        return str(await anext(stream))
    finally:
        await stream.aclose()


async def followed_twice() -> tuple[str, str]:
    found = Changes(cast("Tail", None), lambda: datetime(2026, 1, 1, tzinfo=UTC), tick_s=0.001)
    first = await first_of(found, "nlp", None)
    last_id = first.partition("\n")[0].removeprefix("id: ")
    return first, await first_of(found, "vision", last_id)


def test_nobody_resumes_in_a_group_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_Collector", Quiet)
    monkeypatch.setattr(changes, "BEAT_S", 0.01)
    for event in asyncio.run(followed_twice()):
        assert "event: snapshot\n" in event
