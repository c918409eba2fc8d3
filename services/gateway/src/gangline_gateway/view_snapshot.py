"""Snapshots of the live model, so that a start of the gateway folds only later records.

The logs decide, as for deciders (gangline_bus.snapshot): an invalid snapshot is skipped with a
warning, and an older one or the whole logs are read.

Writing: the tail writes one after `every` records of logs, or after `every_s` if a record came. It
copies the facts (frozen values, so only the dicts) and each partition's mark. `run` (a thread)
encodes, compresses and stores them. Several gateways can use one store: they fold the same facts.

Restoring, newest first
1. The bytes match their sha256, and this version reads their format.
2. The snapshot belongs to these logs: each log has the named record at the snapshot's mark.
3. The tail folds each partition from its mark on, streams too: an earlier submission that is folded
   again would bring back a job that the model has removed.
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
from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_gateway.live_model import LiveFacts

log = structlog.get_logger(__name__)
NAME = "gateway"
VERSION = 2
"""The format of the view: docs/guides/upgrades.md says when to increase it.

Version 1 knew no loopback interfaces of nodes.
"""
_POLL_S, _POLLS = 0.5, 20


@dataclass(frozen=True, slots=True)
class Mark:
    """Records before offset `next` are folded; `last` is a digest of the record before it."""

    next: int
    last: str


@dataclass
class View(LiveFacts):
    """The facts and their offsets: `marks` by `topic/partition`."""

    marks: dict[str, Mark] = field(default_factory=dict)


def codec() -> DataclassCodec[View]:
    """The codec of stored views."""
    return DataclassCodec(View, version=VERSION, converters={1: unchanged})


class Marks:
    """How far each partition is folded."""

    def __init__(self, known: Mapping[str, Mark]) -> None:
        self._known = dict(known)
        self._newest: dict[TopicPartition, Record] = {}

    def of(self, place: TopicPartition) -> Mark | None:
        """The partition's mark; None if there is none."""
        return self._known.get(_name(place))

    def forget(self, place: TopicPartition) -> None:
        """Removes a mark that does not belong to this partition."""
        del self._known[_name(place)]

    def passes(self, record: Record) -> bool:
        """Whether to fold a record: it is at or after the mark, which then moves after it."""
        if record.place not in self._newest:
            mark = self.of(record.place)
            if mark is not None and record.offset < mark.next:
                return False
        self._newest[record.place] = record
        return True

    def now(self) -> dict[str, Mark]:
        """The marks after all folded records."""
        newest = {_name(place): _mark_behind(item) for place, item in self._newest.items()}
        return {**self._known, **newest}


def _name(place: TopicPartition) -> str:
    return f"{place.topic}/{place.partition}"


def _mark_behind(record: Record) -> Mark:
    head = b"%d %s " % (record.timestamp_ms, record.key or b"")
    return Mark(record.offset + 1, hashlib.sha256(head + record.value).hexdigest())


def _in_thread(work: Callable[[], None]) -> None:
    # A daemon, so that a stop never waits for a snapshot.
    threading.Thread(target=work, name=f"snapshot-{NAME}", daemon=True).start()


class ViewSnapshots:
    """Writes and restores the snapshots of one gateway's view."""

    def __init__(
        self,
        store: SnapshotStore,
        *,
        every: int,
        run: Callable[[Callable[[], None]], object] = _in_thread,
    ) -> None:
        self._every = every
        self._written_s = time.monotonic()
        self._store = store
        self._run = run
        self._codec = codec()
        self._writing = False

    def restore(
        self, bus: Bus, logs: Iterable[TopicPartition], beat: Callable[[], None] = lambda: None
    ) -> View | None:
        """The newest valid view, or None. Raises BusError.

        `beat` is called after each of its lines.
        """
        places = list(logs)
        for data in self._kept():
            try:
                view = self._restored(data, bus, places, beat)
            except BusError:
                raise
            except Exception as error:  # noqa: BLE001 - the logs replace any bad snapshot
                reason = f"{type(error).__name__}: {error}"[:500]
                log.warning("snapshot skipped", service=NAME, reason=reason)
            else:
                log.info("restored a snapshot", service=NAME, jobs=len(view.jobs))
                return view
        return None

    def due(self, came: int) -> bool:
        """Whether to write a snapshot, `came` records after the last one."""
        age_s = time.monotonic() - self._written_s
        return came >= self._every or (came > 0 and age_s > EVERY_S)

    def write(self, facts: LiveFacts, marks: Mapping[str, Mark]) -> None:
        """Stores facts that no longer change, unless a snapshot is still being written."""
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
        except Exception as error:  # noqa: BLE001 - the next one may succeed
            log.warning("snapshot not written", reason=f"{type(error).__name__}: {error}"[:500])
        else:
            log.info("snapshot written", service=NAME, seq=seq, size_bytes=len(data))
        finally:
            self._writing = False

    def _kept(self) -> Iterator[bytes]:
        try:
            yield from self._store.newest(NAME, 0)
        except Exception as error:  # noqa: BLE001 - without the store a start reads the logs
            log.warning("snapshots not read", service=NAME, reason=str(error)[:500])

    def _restored(
        self, data: bytes, bus: Bus, logs: list[TopicPartition], beat: Callable[[], None]
    ) -> View:
        header, lines = unpack(data)
        if (header.format, header.service) != (FORMAT, NAME):
            raise SnapshotRefused("it is of another format or service")
        if not self._codec.reads(header.state, header.form):
            raise SnapshotRefused(f"this version cannot read its state format {header.state}")
        view = self._codec.load(counted(lines, beat), header.state)
        marks = Marks(view.marks)
        known = {place: mark for place in logs if (mark := marks.of(place)) is not None}
        _check(bus, known)
        return view


def _check(bus: Bus, marks: Mapping[TopicPartition, Mark]) -> None:
    """Checks the record before each mark. Raises SnapshotRefused, BusError."""
    if not marks:
        raise SnapshotRefused("it has no marks of logs")
    starts, ends = bus.start_offsets(marks), bus.end_offsets(marks)
    for place, mark in marks.items():
        if not starts[place] < mark.next <= ends[place]:
            raise SnapshotRefused(f"{place.topic} does not have its offset")
    reader = bus.reader("snapshot")
    try:
        for place, mark in marks.items():
            # One partition at a time: another one may have many records after its mark.
            reader.assign({place: mark.next - 1})
            polls = (reader.poll(1, _POLL_S) for _ in range(_POLLS))
            record = next((records[0] for records in polls if records), None)
            if record is None:
                raise SnapshotRefused(f"{place.topic} could not be read in time")
            if _mark_behind(record) != mark:
                raise SnapshotRefused(f"{place.topic} is another log")
    finally:
        reader.close()
