"""Several parts of a job in one event stream, which resumes each where it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from gangline_gateway import sse
from gangline_gateway.follow import TooSlow
from gangline_gateway.problems import ProblemError
from gangline_gateway.routes.live import _read, together


async def part(*texts: str | Exception) -> AsyncGenerator[str, None]:
    for text in texts:
        if isinstance(text, Exception):
            raise text
        yield text
        await asyncio.sleep(0)


def collected(*, at: dict[str, str] | None = None, **parts: AsyncGenerator[str, None]) -> list[str]:
    async def read() -> list[str]:
        return [text async for text in together(parts, at or {})]

    return asyncio.run(read())


def test_each_event_carries_the_places_of_all_parts() -> None:
    found = collected(
        at={"logs": "logs.0.4"},
        events=part(sse.event("job.queued", {"n": 1}, "scheduling.0.7")),
    )
    assert found == [
        'id: events=scheduling.0.7;logs=logs.0.4\nevent: event\ndata: {"n":1}\n\n',
    ]
    last = found[0].partition("\n")[0].removeprefix("id: ")
    assert _read(last, ("events", "logs")) == {"events": "scheduling.0.7", "logs": "logs.0.4"}


def test_the_end_comes_once_and_last() -> None:
    found = collected(
        events=part(sse.event("end", {"state": "failed"}, "a.0.1")),
        logs=part(sse.event("log", {"n": 1}), sse.event("end", {"state": "failed"}, "b.0.2")),
    )
    assert [text.split("\n")[-4] for text in found] == ["event: log", "event: end"]
    assert found[-1].startswith("id: events=a.0.1;logs=b.0.2\n")


def test_comments_and_drops_pass_as_they_are() -> None:
    dropped = sse.event("dropped", {"reason": "read too slowly"})
    assert collected(events=part(sse.COMMENT, dropped)) == [sse.COMMENT, dropped]


def test_a_part_that_fails_ends_the_stream_and_the_other_parts() -> None:
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[str, None]:
        try:
            while True:
                await asyncio.sleep(60)
                yield ""
        finally:
            closed.append(True)

    with pytest.raises(TooSlow):
        collected(events=part(TooSlow()), logs=endless())
    assert closed == [True]


@pytest.mark.parametrize("text", ["nonsense", "metrics=a.0.1", "events"])
def test_the_id_of_another_stream_is_refused(text: str) -> None:
    with pytest.raises(ProblemError):
        _read(text, ("events", "logs"))
