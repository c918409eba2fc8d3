"""Snapshots of the live model: a start of the gateway folds only what came after.

As those of the deciders (gangline_bus.snapshot) one is a help and never a truth: whatever is wrong
with it, it is passed over with a warning, for an older one or for the whole logs.

Writing, by the tail when `every` records of logs came since the last one, or some and `every_s`
passed: it copies the facts
(frozen values: a copy of the dicts) and where in each partition they stand; elsewhere (`run`: a
thread) they are dumped, compressed and put. Several gateways write to one place: what they fold is
the same.

Restoring, newest first
1. The bytes are whole (sha256) and are of this format and of a view that is read here.
2. It is of these logs: at each log's mark stands the record that the snapshot names.
3. The tail folds each partition from its mark on. Records before it are known, those of streams
   too: a submission that was folded again would bring back a job that was forgotten.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from gangline_bus.ports import Bus, BusError, Record, TopicPartition
from gangline_bus.snapshot import (
    EVERY_S,
    FORMAT,
    SnapshotHeader,
    SnapshotRefused,
    SnapshotStore,
    counted,
    pack,
    unpack,
)
from gangline_bus.state_json import DataclassCodec
from gangline_gateway.live_model import LiveFacts

log = structlog.get_logger(__name__)
NAME = "gateway"
VERSION = 1
"""The format of the view: docs/guides/upgrades.md says when to count it up."""
_POLL_S, _POLLS = 0.5, 20


@dataclass(frozen=True, slots=True)
class Mark:
    """All before offset `next` is folded; `last` is a digest of the record before it."""

    next: int
    last: str


@dataclass
class View(LiveFacts):
    """The facts, and where they stand: `marks` by `topic/partition`."""

    marks: dict[str, Mark] = field(default_factory=dict)


def codec() -> DataclassCodec[View]:
    """How the view is kept."""
    return DataclassCodec(View, version=VERSION)


class Marks:
    """How far each partition is folded."""

    def __init__(self, known: Mapping[str, Mark]) -> None:
        self._known = dict(known)
        self._newest: dict[TopicPartition, Record] = {}

    def of(self, place: TopicPartition) -> Mark | None:
        """As the snapshot says; None when it says nothing."""
        return self._known.get(_name(place))

    def forget(self, place: TopicPartition) -> None:
        """The snapshot's mark is of another partition than this one."""
        del self._known[_name(place)]

    def passes(self, record: Record) -> bool:
        """Whether a record is to be folded: it is behind the mark, which moves behind it."""
        if record.place not in self._newest:
            mark = self.of(record.place)
            if mark is not None and record.offset < mark.next:
                return False
        self._newest[record.place] = record
        return True

    def now(self) -> dict[str, Mark]:
        """The marks behind all that was folded."""
        newest = {_name(place): _mark_behind(item) for place, item in self._newest.items()}
        return {**self._known, **newest}


def _name(place: TopicPartition) -> str:
    return f"{place.topic}/{place.partition}"


def _mark_behind(record: Record) -> Mark:
    told = b"%d %s " % (record.timestamp_ms, record.key or b"")
    return Mark(record.offset + 1, hashlib.sha256(told + record.value).hexdigest())


def _in_thread(work: Callable[[], None]) -> None:
    # A daemon: a stop never waits for a snapshot.
    threading.Thread(target=work, name=f"snapshot-{NAME}", daemon=True).start()


class ViewSnapshots:
    """Writes and restores the snapshots of one gateway's view."""

    def __init__(
        self,
        store: SnapshotStore,
        *,
        every: int,
        every_s: float = EVERY_S,
        run: Callable[[Callable[[], None]], object] = _in_thread,
    ) -> None:
        self._every = every
        self._every_s = every_s
        self._written_s = time.monotonic()
        self._store = store
        self._run = run
        self._codec = codec()
        self._writing = False

    def restore(
        self, bus: Bus, logs: Iterable[TopicPartition], beat: Callable[[], None] = lambda: None
    ) -> View | None:
        """The newest view that holds, None: there is none. Raises BusError.

        `beat` is called after each of its lines.
        """
        places = list(logs)
        for data in self._kept():
            try:
                view = self._restored(data, bus, places, beat)
            except BusError:
                raise
            except Exception as error:  # noqa: BLE001 - the logs decide, whatever a snapshot does
                reason = f"{type(error).__name__}: {error}"[:500]
                log.warning("snapshot skipped", service=NAME, reason=reason)
            else:
                log.info("restored a snapshot", service=NAME, jobs=len(view.jobs))
                return view
        return None

    def due(self, came: int) -> bool:
        """Whether to write one, so many records after the last one."""
        age_s = time.monotonic() - self._written_s
        return came >= self._every or (came > 0 and age_s > self._every_s)

    def write(self, facts: LiveFacts, marks: Mapping[str, Mark]) -> None:
        """Keep facts that nobody changes any more, unless others are still being written."""
        self._written_s = time.monotonic()
        if self._writing:
            return
        self._writing = True
        view = View(**vars(facts), marks=dict(marks))
        self._run(lambda: self._write(view))

    def _write(self, view: View) -> None:
        seq = sum(mark.next for mark in view.marks.values())
        header = SnapshotHeader(
            format=FORMAT, state=VERSION, form=self._codec.form, service=NAME, shard=0,
            next_seq=seq, writer_epoch=0, offset=0, last="",
        )  # fmt: skip
        try:
            data = pack(header, self._codec.dump(vars(view)))
            self._store.put(header, data)
        except Exception as error:  # noqa: BLE001 - the next one may succeed; nothing rests on it
            log.warning("snapshot not written", reason=f"{type(error).__name__}: {error}"[:500])
        else:
            log.info("snapshot written", service=NAME, seq=seq, size_bytes=len(data))
        finally:
            self._writing = False

    def _kept(self) -> Iterator[bytes]:
        try:
            yield from self._store.newest(NAME, 0)
        except Exception as error:  # noqa: BLE001 - a store that is away costs time, not truth
            log.warning("snapshots not read", service=NAME, reason=str(error)[:500])

    def _restored(
        self, data: bytes, bus: Bus, logs: list[TopicPartition], beat: Callable[[], None]
    ) -> View:
        header, lines = unpack(data)
        if (header.format, header.service) != (FORMAT, NAME):
            raise SnapshotRefused("it is of another format or service")
        if not self._codec.reads(header.state, header.form):
            raise SnapshotRefused(f"its state format {header.state} is not one that is read here")
        view = self._codec.load(counted(lines, beat), header.state)
        marks = Marks(view.marks)
        known = {place: mark for place in logs if (mark := marks.of(place)) is not None}
        _check(bus, known)
        return view


def _check(bus: Bus, marks: Mapping[TopicPartition, Mark]) -> None:
    """That before each mark stands the record that it names. Raises SnapshotRefused, BusError."""
    if not marks:
        raise SnapshotRefused("it names no place in any log")
    starts, ends = bus.start_offsets(marks), bus.end_offsets(marks)
    for place, mark in marks.items():
        if not starts[place] < mark.next <= ends[place]:
            raise SnapshotRefused(f"{place.topic} does not reach to its place")
    waiting = dict(marks)
    reader = bus.reader("snapshot")
    try:
        reader.assign({place: mark.next - 1 for place, mark in marks.items()})
        for _ in range(_POLLS):
            for record in reader.poll(len(marks), _POLL_S):
                named = waiting.pop(record.place) if record.place in waiting else None
                if named is not None and _mark_behind(record) != named:
                    raise SnapshotRefused(f"{record.topic} is another log")
            if not waiting:
                return
        raise SnapshotRefused("the logs could not be read in time")
    finally:
        reader.close()
