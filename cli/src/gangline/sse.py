"""Server-sent events: the wire format, and a reader that resumes after a broken connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import httpx

from gangline.errors import CliError

MAX_RETRIES = 8
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 5.0
END, DROPPED = "end", "dropped"

OpenStream = Callable[[str], AbstractContextManager[Iterator[str]]]
"""Opens the stream after a given Last-Event-ID ("": from its beginning); gives its lines."""


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name ("message" unless named), its data and the cursor after it."""

    event: str
    data: str
    id: str = ""


@dataclass
class EventParser:
    """Lines of a text/event-stream into events, as the HTML standard (9.2.6) has it."""

    last_id: str = ""
    _name: str = ""
    _data: list[str] = field(default_factory=list)

    def feed(self, line: str) -> ServerEvent | None:
        """Take one line without its end; gives the event that it completed."""
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name == "id" and "\0" not in value:
            self.last_id = value
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], ""
        if not data:
            return None
        return ServerEvent(name or "message", "\n".join(data), self.last_id)


class ComeLaterError(httpx.TransportError):
    """The server has no room for the stream now; `after_s`: the pause that it asks for."""

    def __init__(self, status: int, after_s: float) -> None:
        super().__init__(f"status {status}")
        self.after_s = after_s


class _LineEndedError(httpx.TransportError):
    """The server closed the stream before its end, or dropped a reader that was too slow."""


def follow(
    open_stream: OpenStream,
    *,
    notice: Callable[[str], None],
    after: str = "",
    retries: int = MAX_RETRIES,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[ServerEvent]:
    """Events up to the one named `end`, which is not given.

    A broken connection is opened again after the last event seen, with a notice; `retries`
    failures in a row raise CliError.
    """
    last_id, failures = after, 0
    while True:
        parser = EventParser(last_id)
        try:
            with open_stream(last_id) as lines:
                for line in lines:
                    event = parser.feed(line)
                    if event is None:
                        continue
                    if event.event == END:
                        return
                    if event.event == DROPPED:
                        break
                    last_id, failures = parser.last_id, 0
                    yield event
            raise _LineEndedError("the stream ended early")
        except httpx.TransportError as error:
            failures += 1
            if failures > retries:
                raise CliError(
                    f"the stream broke {failures} times in a row: {error}",
                    "is the platform up? see: gangline up, gangline doctor",
                ) from None
            least_s = error.after_s if isinstance(error, ComeLaterError) else 0.0
            delay_s = max(least_s, min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (failures - 1)))
            notice(f"connection lost; trying again in {delay_s:g} s ({failures} of {retries})")
            sleep(delay_s)
