"""Poison: inputs that end the process that decides them, and when they are skipped.

A decider is crash-only, so an input whose decision raises would also end every later process. The
second death at the same (topic, partition, offset) sends the record to the DLQ.

The known poison is in a note: a text that Kafka keeps with the committed offsets of the shard's
group, at the place of the own log (no input stands there). Only the shard's fenced writer writes
it. It outlives the process, its machine and a change of hosts. A cycle pays nothing for it. It is
written
1. before the first batch of a process, and taken back when it has decided all that waited at its
   takeover or ends in order, so that a death in between is noticed (`lives` counts them);
2. when a decision raises, before the process ends, and by the watchdog when one hangs (`blame`);
3. in a cautious process around each input (`trying`), for deaths without an error: a kill, no
   memory, C code that never returns.

A process is cautious when its predecessor died before it had caught up or while it tried an input.
It decides one input per transaction, for the inputs of one batch, and for twice as many after each
further death, as Kafka gives the partitions in any order. A note is never needed: without one, a
poison input costs more deaths.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import NamedTuple

from opentelemetry import metrics

from gangline_bus.ports import BusError, Record, TopicPartition

DEATHS = 2
_MAX_SUSPECTS = 8
_MAX_TRACE_CHARS = 300
_MAX_FRAMES = 8
_MOST_DOUBLINGS = 6
SILENT = "the process ended without an error while it decided this"
POISONED = metrics.get_meter(__name__).create_counter(
    "gangline.bus.poisoned",
    description="Inputs that were skipped because their decision ended the service twice",
)


class InputAt(NamedTuple):
    """One record of an input."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """An input that ended processes so many times. `trace` says where, without any value."""

    deaths: int
    trace: str


class Suspects:
    """The poison inputs that the processes of one shard know."""

    def __init__(self) -> None:
        self.lives = 0
        self.trying: InputAt | None = None
        self._found: dict[InputAt, Suspect] = {}

    @classmethod
    def read(cls, note: str) -> Suspects:
        """Those of a note; none when it is empty or of another form."""
        found = cls()
        try:
            data = json.loads(note or "{}")
            found.lives = int(data.get("lives", 0))
            trying = data.get("trying")
            found.trying = None if trying is None else _input_at(*trying)
            for topic, partition, offset, deaths, trace in data.get("suspects", ()):
                suspect = Suspect(int(deaths), str(trace))
                found._found[_input_at(topic, partition, offset)] = suspect
        except (ValueError, TypeError, AttributeError):
            return cls()
        return found

    def note(self) -> str:
        """A text below 4 KB, the limit of Kafka; empty when nothing is known."""
        data: dict[str, object] = {}
        if self.lives:
            data["lives"] = self.lives
        if self.trying is not None:
            data["trying"] = self.trying
        if self._found:
            data["suspects"] = [(*at, it.deaths, it.trace) for at, it in self._found.items()]
        return json.dumps(data, separators=(",", ":")) if data else ""

    def begin(self) -> bool:
        """A new process: blame what the last one tried; whether to be cautious."""
        cautious = self.lives > 0 or self.trying is not None
        if self.trying is not None:
            self.blame(self.trying, SILENT)
        self.lives = max(self.lives, int(cautious))
        return cautious

    def blame(self, at: InputAt, trace: str) -> None:
        """One more death at this input."""
        deaths = self._found.pop(at).deaths if at in self._found else 0
        self._found[at] = Suspect(deaths + 1, trace[:_MAX_TRACE_CHARS])
        self.trying = None
        while len(self._found) > _MAX_SUSPECTS:
            del self._found[next(iter(self._found))]

    def known(self, record: Record) -> Suspect | None:
        """The entry of this record; None: it has none."""
        return self._found.get(at_of(record)) if self._found else None

    def settled(self, positions: Mapping[TopicPartition, int]) -> None:
        """A transaction is about to be committed: forget what it passes."""
        self.trying = None
        for at in list(self._found):
            if positions.get(TopicPartition(at.topic, at.partition), 0) > at.offset:
                del self._found[at]


class Guard:
    """Watches over the decisions of one process of a shard; `write` commits its notes.

    `write` commits a note and nothing else; it raises BusError. `batch` is the least number of
    inputs for which a process is cautious. `behind`: the ends of the inputs in which some wait.
    """

    def __init__(
        self,
        note: str,
        write: Callable[[str], None],
        batch: int,
        behind: Mapping[TopicPartition, int],
    ) -> None:
        self._suspects = Suspects.read(note)
        self._kept = note
        self._write = write
        self._behind = behind
        cautious = self._suspects.begin()
        doublings = min(self._suspects.lives - 1, _MOST_DOUBLINGS)
        self._careful = batch << doublings if cautious else 0
        self._tries = self._proved = False
        self._deciding: InputAt | None = None

    @property
    def cautious(self) -> bool:
        """Whether inputs are decided one by one."""
        return self._careful > 0

    def passed(self) -> None:
        """An input was decided."""
        self._careful = max(0, self._careful - 1)

    def advanced(self, positions: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """A cycle was committed, and the inputs are read up to these positions. Raises BusError."""
        if self._proved:
            return
        reached = positions() if self._behind else {}
        self._behind = {at: end for at, end in self._behind.items() if reached[at] < end}
        if not self._behind:  # what ended the last process is decided
            self._careful, self._suspects.lives, self._proved = 0, 0, True
            self._keep()

    def poison(self, record: Record) -> Suspect | None:
        """The entry of a record that must not be decided; None when it may be."""
        suspect = self._suspects.known(record)
        return suspect if suspect is not None and suspect.deaths >= DEATHS else None

    def begin(self) -> None:
        """A batch is there: note that this process tries its first one. Raises BusError."""
        if self.cautious or self._tries or self._proved:
            return
        self._tries = True
        self._suspects.lives += 1
        self._keep()

    @contextlib.contextmanager
    def deciding(self, record: Record) -> Iterator[None]:
        """Whatever is raised within is blamed on the record. Raises BusError by itself too."""
        at, careful = at_of(record), self.cautious
        if careful:
            self._suspects.trying = at
            self._keep()
        self._deciding = at
        try:
            yield
        except Exception as error:
            self._blame(at, trace_of(error))
            raise
        self._deciding = None
        if careful:
            self._suspects.trying = None
            self._keep()

    def doubt(self) -> None:
        """The process ends for what some input or Tick did: let the next one be cautious."""
        self._suspects.lives += 1
        with contextlib.suppress(BusError):
            self._keep()

    def stopped(self) -> None:
        """The process ends in order: that is not a death. Raises BusError."""
        if self._tries and not self._proved:
            self._suspects.lives -= 1
            self._keep()

    def hangs(self, frame: FrameType | None) -> None:
        """From the watchdog's thread, before it ends the process; `frame` is the loop's."""
        if self._deciding is not None:
            self._blame(self._deciding, trace_of_hang(frame))

    def settle(self, positions: Mapping[TopicPartition, int]) -> str | None:
        """The note to commit with these positions; None when it is committed already."""
        self._suspects.settled(positions)
        note = self._suspects.note()
        return None if note == self._kept else note

    def settled(self, note: str | None) -> None:
        """The note that `settle` returned was committed."""
        self._kept = self._kept if note is None else note

    def _blame(self, at: InputAt, trace: str) -> None:
        self._suspects.blame(at, trace)
        with contextlib.suppress(BusError):  # one death more, then
            self._keep()

    def _keep(self) -> None:
        note = self._suspects.note()
        if note != self._kept:
            self._write(note)
            self._kept = note


def at_of(record: Record) -> InputAt:
    """Where a record stands."""
    return InputAt(record.topic, record.partition, record.offset)


def _input_at(topic: object, partition: object, offset: object) -> InputAt:
    return InputAt(str(topic), int(str(partition)), int(str(offset)))


def trace_of(error: BaseException) -> str:
    """The kind of the error and where it was raised, innermost first; none of its words."""
    return f"{type(error).__name__} at {_places(_frames(error.__traceback__))}"


def trace_of_hang(frame: FrameType | None) -> str:
    """Where a thread is, innermost first."""
    return f"hangs at {_places(_outwards(frame))}"


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    found = []
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return found[::-1][:_MAX_FRAMES]


def _outwards(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _places(frames: Iterator[tuple[FrameType, int]] | list[tuple[FrameType, int]]) -> str:
    shown = []
    for frame, line in frames:
        file = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
        shown.append(f"{file}:{line} in {frame.f_code.co_name}")
        if len(shown) == _MAX_FRAMES:
            break
    return " < ".join(shown)[:_MAX_TRACE_CHARS]
