"""Bytes of a rank's stdout and stderr into numbered, redacted lines of bounded length.

Also here: the same redaction for what a rank says over its socket.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from pydantic import Base64Bytes

from gangline_schemas.events.logs import LINE_CHARS, LogLine
from gangline_schemas.rank_protocol import (
    CopyDamaged,
    DataDamaged,
    Doing,
    FromRank,
    HandlesStop,
    Hello,
    LeaveOutSamples,
    TrialPoint,
    Troubled,
)
from gangline_schemas.secrets import redact

from .log_share import LogShare, Skimmed, left_out

LAST_WORDS: Final = 20
_BATCH_LINES: Final = 500
_BATCH_CHARS: Final = 256 * 1024
_NOTES: Final = 1000
_ALWAYS: Final = 4096  # bytes of a rank that prints little, beside one that prints without end
_SECRET_LINE_MIN: Final = 6
_Decoder = codecs.getincrementaldecoder("utf-8")

Stream = Literal["stdout", "stderr"]


def secret_texts(values: Iterable[str]) -> frozenset[str]:
    """Secret values, and each longer line of those that span lines: what may stand in a line."""
    found: set[str] = set()
    for value in values:
        lines = value.splitlines()
        found.update(line for line in lines if len(line) >= _SECRET_LINE_MIN or len(lines) == 1)
    found.discard("")
    return frozenset(found)


_WITHOUT_TEXTS = (Hello, Doing, HandlesStop, CopyDamaged, LeaveOutSamples, TrialPoint)
"""Of a rank; a trial's metrics are named by its study."""


def without_secrets(message: FromRank, secrets: frozenset[str]) -> FromRank:
    """A message of a rank, without secrets in its sentences and the names of its metrics."""
    if isinstance(message, _WITHOUT_TEXTS):
        return message
    if isinstance(message, DataDamaged):
        return message.model_copy(update={"reason": redact(message.reason, secrets)})
    if isinstance(message, Troubled):
        sentence = redact(message.trouble.message, secrets)
        trouble = message.trouble.model_copy(update={"message": sentence})
        return message.model_copy(update={"trouble": trouble})
    names = {name: _clean_name(name, secrets) for name in message.metrics}
    if all(name == clean for name, clean in names.items()):
        return message
    cleaned = {names[name]: values for name, values in message.metrics.items()}
    return message.model_copy(update={"metrics": cleaned})


@lru_cache(maxsize=4096)  # each step reports the same names
def _clean_name(name: str, secrets: frozenset[str]) -> str:
    return redact(name, secrets)


@dataclass(slots=True)
class LineSplitter:
    """One stream's bytes into texts; a line above LINE_CHARS is cut into several."""

    secrets: frozenset[str]
    begun: bytes = b""  # of a line whose end is not here yet
    _hold: int = field(init=False)

    def __post_init__(self) -> None:
        """Keep back so much of a long line that no secret is cut in two."""
        longest = max((len(secret.encode()) for secret in self.secrets), default=0)
        self._hold = min(max(1024, longest), LINE_CHARS // 2)

    @property
    def hold(self) -> int:
        """A secret has at most so many bytes."""
        return self._hold

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        *lines, rest = (self.begun + data).split(b"\n")
        found = [piece for line in lines for piece in self._pieces(line)]
        while len(rest) > LINE_CHARS:
            # A character, and with it a secret, may have arrived by half.
            decoder = _Decoder("replace")
            text = redact(decoder.decode(rest), self.secrets)
            half = decoder.getstate()[0]
            if len(text) <= self._hold:
                rest = text.encode() + half
                break
            found.append(text[: LINE_CHARS - self._hold])
            rest = text[LINE_CHARS - self._hold :].encode() + half
        self.begun = rest
        return found

    def end(self) -> list[str]:
        """The text after the last newline."""
        rest, self.begun = self.begun, b""
        return self._pieces(rest) if rest else []

    def _pieces(self, line: bytes) -> list[str]:
        text = self._clean(line.removesuffix(b"\r"))
        return [text[at : at + LINE_CHARS] for at in range(0, len(text), LINE_CHARS)] or [""]

    def _clean(self, line: bytes) -> str:
        return redact(line.decode(errors="replace"), self.secrets)


@dataclass(frozen=True, slots=True)
class KeptLog:
    """Where a rank's log stands: its next line's number, lines begun, and its last words."""

    next_line: int
    stdout: Base64Bytes
    stderr: Base64Bytes
    last_words: tuple[str, ...] = field(repr=False)


class LogBatcher:
    """Collects lines of both streams in order of arrival and numbers them from 0.

    `publish(first_line, lines)` is called with each batch, from the caller's thread. Above the
    gang's `share`, lines are left out; a line says how many.
    """

    def __init__(
        self,
        secrets: frozenset[str],
        publish: Callable[[int, tuple[LogLine, ...]], None],
        now_ms: Callable[[], int],
        share: LogShare | None = None,
    ) -> None:
        self._splitters: dict[Stream, LineSplitter] = {
            "stdout": LineSplitter(secrets),
            "stderr": LineSplitter(secrets),
        }
        self._publish = publish
        self._now_ms = now_ms
        self._share = share or LogShare()
        self._skimmed: dict[Stream, Skimmed] = {}
        self._lines: list[LogLine] = []
        self._chars = 0
        self._next = 0
        self._last: deque[str] = deque(maxlen=LAST_WORDS)
        self._notes: deque[str] = deque(maxlen=_NOTES)

    @property
    def last_words(self) -> str:
        """The end of what was written to stderr."""
        return "\n".join(self._last)

    def kept(self) -> KeptLog:
        """After `finish`: where it stands, to be adopted."""
        stdout, stderr = self._splitters["stdout"], self._splitters["stderr"]
        return KeptLog(self._next, stdout.begun, stderr.begun, tuple(self._last))

    def adopt(self, kept: KeptLog) -> None:
        """Continue a log at its next line."""
        self._next = kept.next_line
        self._splitters["stdout"].begun = kept.stdout
        self._splitters["stderr"].begun = kept.stderr
        self._last.extend(kept.last_words)

    def feed(self, stream: Stream, data: bytes) -> float:
        """Take in what was read of a stream; b"" is its end.

        Returns for how many seconds its reader rests: 0, or a little while lines are left out.
        """
        if not data:
            self._resume(stream)
            self._take(stream, self._splitters[stream].end())
            return 0.0
        if stream in self._skimmed and self._share.has_room():
            self._resume(stream)
        if stream not in self._skimmed and self._share.takes(data):
            self._take(stream, self._splitters[stream].feed(data))
            return 0.0
        skimmed = self._skimmed.setdefault(stream, Skimmed(self._splitters[stream].hold))
        skimmed.add(data)
        return self._share.skims(data)

    def _take(self, stream: Stream, texts: Iterable[str]) -> None:
        time_ms = self._now_ms()
        for text in texts:
            self._lines.append(LogLine(time_ms=time_ms, stream=stream, text=text))
            self._chars += len(text)
            if stream == "stderr" and text.strip():
                self._last.append(text)
            if len(self._lines) >= _BATCH_LINES or self._chars >= _BATCH_CHARS:
                self._publish_lines()

    def _resume(self, stream: Stream) -> None:
        """Continue with the newest bytes; say before how many lines are left out."""
        skimmed = self._skimmed.pop(stream, None)
        if skimmed is None:
            return
        splitter, tail = self._splitters[stream], skimmed.settle()
        if skimmed.size_bytes:
            skimmed.size_bytes += len(splitter.begun)
            splitter.begun = b""
            self._own_line(left_out(skimmed))
        self._share.takes(tail)
        self._take(stream, splitter.feed(tail))

    def note(self, text: str) -> None:
        """Put a line of our own among the rank's. May be called from any thread."""
        self._notes.append(text)

    def flush(self) -> None:
        """Publish what was collected, with what was read meanwhile if there is room for it."""
        for stream, skimmed in list(self._skimmed.items()):
            if len(skimmed.tail) <= _ALWAYS or self._share.has_room():
                self._resume(stream)
        while self._notes:
            self._own_line(self._notes.popleft())
        self._publish_lines()

    def finish(self) -> None:
        """Publish all that was read."""
        for stream in list(self._skimmed):
            self._resume(stream)
        self.flush()

    def _own_line(self, text: str) -> None:
        text = f"gangline: {text}"[:LINE_CHARS]
        self._lines.append(LogLine(time_ms=self._now_ms(), stream="stderr", text=text))

    def _publish_lines(self) -> None:
        if self._lines:
            lines = tuple(self._lines)
            self._lines, self._chars = [], 0
            self._publish(self._next, lines)
            self._next += len(lines)
