"""Server-sent events: the format, and resuming after a broken connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from gangline.errors import CliError
from gangline.sse import EventParser, ServerEvent, follow


def parsed(text: str) -> list[ServerEvent]:
    parser = EventParser()
    found = [parser.feed(line) for line in text.split("\n")]
    return [event for event in found if event is not None]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("data: a\n\n", [ServerEvent("message", "a")]),
        ("event: log\nid: 7\ndata: a\n\n", [ServerEvent("log", "a", "7")]),
        ("data: a\ndata: b\n\n", [ServerEvent("message", "a\nb")]),
        ("data:a\n\ndata:  b\n\n", [ServerEvent("message", "a"), ServerEvent("message", " b")]),
        ("data\n\n", [ServerEvent("message", "")]),
        (": alive\n\nevent: x\n\ndata: a\n\n", [ServerEvent("message", "a")]),
        (
            "id: 1\ndata: a\n\ndata: b\n\n",
            [ServerEvent("message", "a", "1"), ServerEvent("message", "b", "1")],
        ),
        (
            "id: 1\ndata: a\n\nid\ndata: b\n\n",
            [ServerEvent("message", "a", "1"), ServerEvent("message", "b")],
        ),
        ("id: 1\0\nretry: 5\nother: x\ndata: a:b\n\n", [ServerEvent("message", "a:b")]),
        ("data: torn", []),
    ],
)  # fmt: skip
def test_the_format(text: str, events: list[ServerEvent]) -> None:
    assert parsed(text) == events


class Server:
    """Gives one script after another; a script ends with the error that breaks the line."""

    def __init__(self, *scripts: list[str | Exception]) -> None:
        self.scripts = list(scripts)
        self.resumed_after: list[str] = []
        self.notices: list[str] = []
        self.slept: list[float] = []

    @contextmanager
    def open(self, last_id: str) -> Iterator[Iterator[str]]:
        self.resumed_after.append(last_id)
        yield self._lines(self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0])

    def _lines(self, script: list[str | Exception]) -> Iterator[str]:
        for item in script:
            if isinstance(item, Exception):
                raise item
            yield from item.split("\n")

    def follow(self, retries: int = 3) -> Iterator[ServerEvent]:
        return follow(
            self.open, notice=self.notices.append, retries=retries, sleep=self.slept.append
        )


ONE, TWO, END = "id: 1\ndata: one\n", "id: 2\ndata: two\n", "event: end\ndata: {}\n"


def test_a_broken_line_goes_on_after_the_last_event() -> None:
    server = Server([ONE, "data: half", httpx.ReadError("gone")], [TWO, END])
    assert [event.data for event in server.follow()] == ["one", "two"]
    assert server.resumed_after == ["", "1"]
    assert len(server.notices) == len(server.slept) == 1


@pytest.mark.parametrize("ending", [[], ["event: dropped\ndata: {}\n"]])
def test_an_early_end_and_a_drop_are_breaks(ending: list[str | Exception]) -> None:
    server = Server([ONE, *ending], [TWO, END])
    assert [event.data for event in server.follow()] == ["one", "two"]
    assert server.resumed_after == ["", "1"]


def test_it_gives_up_after_so_many_failures_in_a_row() -> None:
    server = Server([httpx.ConnectError("refused")])
    with pytest.raises(CliError, match="4 times in a row"):
        list(server.follow(retries=3))
    assert len(server.notices) == 3
    assert server.slept == sorted(server.slept)


def test_an_event_starts_the_count_anew() -> None:
    broken: list[str | Exception] = [httpx.ReadError("gone")]
    server = Server(broken, broken, [ONE, *broken], broken, [TWO, END])
    assert [event.data for event in server.follow(retries=2)] == ["one", "two"]


def test_a_refusal_is_no_break() -> None:
    server = Server([CliError("no such job")])  # type: ignore[list-item]
    with pytest.raises(CliError, match="no such job"):
        list(server.follow())
    assert server.notices == []
