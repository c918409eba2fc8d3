"""Snapshots: the state at a place of its log, so that a takeover folds only the events after it.

A snapshot saves time and is never the truth. If anything is wrong with one, it is skipped with a
warning, and the log is folded from an older one or from its start.

Writing, by the leader, when `every` events came since the last one, or some and `every_s` passed
1. The loop says where in the log the state stands: an offset no later than its last event's.
2. Copy the facts (frozen values: a copy of the dicts) and continue.
3. Elsewhere (`run`: a thread): dump, compress, put. One at a time; an error is a warning.

Restoring, at a takeover, newest first
1. The bytes are whole (sha256), and are of this service, shard and format. This code reads their
   state format: it is its own, or one that its converters lead from.
2. The log still reaches there, and the event before the snapshot's place is the one that it names
   (id and time): it is a snapshot of this log.
3. The tail folds with all of fold.py's checks, and the result keeps the invariants.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import structlog
from pydantic import Field, ValidationError

from gangline_bus.decision import Decider
from gangline_bus.fold import Folded, Interrupted, Progress, fold_on, no_progress
from gangline_bus.ports import Bus, BusError, TopicPartition
from gangline_bus.state_json import Facts
from gangline_schemas.base import Model

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")

FORMAT = 2
EVERY = 20_000
EVERY_S = 900.0
_LEVEL = 1  # a quarter of the size for a tenth of the time of the default level


class SnapshotCodec(Protocol[StateT]):
    """How a service's state becomes bytes. Never pickle: bytes from a store must not run code.

    `version` counts the formats of the state, `form` is a digest of its facts' types.
    """

    version: int

    @property
    def form(self) -> str:
        """The digest; it changes where a field or its type does."""

    def reads(self, version: int, form: str) -> bool:
        """Whether `load` takes lines of this version and form."""

    def copy(self, state: StateT) -> Facts:
        """The facts as they are now, for `dump` in another thread."""

    def dump(self, facts: Facts) -> Iterable[bytes]:
        """The facts, as lines that end with a newline."""

    def load(self, lines: Iterable[bytes], version: int | None = None) -> StateT:
        """The state of these lines: the same fingerprint and the same further decisions.

        `version` is that of the lines, the codec's own by default.
        """


class SnapshotStore(Protocol):
    """Where snapshots are kept. Both may raise anything: nothing depends on them."""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        """The kept snapshots, newest first, each read when it is asked for."""

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        """Keep one, whole or not at all; the oldest ones go."""


class SnapshotHeader(Model):
    """The description of a snapshot. Events from `next_seq` on stand at `offset` or later.

    `state` and `form` are the codec's; `inputs` are the next offsets that the log named before, by
    topic and partition.
    """

    format: int
    state: int
    form: str
    service: str
    shard: int
    next_seq: int
    writer_epoch: int
    offset: int
    last: str
    inputs: dict[str, dict[int, int]] = Field(default_factory=dict)


class SnapshotRefused(Exception):
    """Not a snapshot of this state's log and format, or damaged; the message says which."""


class Snapshots(Generic[StateT]):
    """Writes and restores the snapshots of one shard of one decider."""

    def __init__(
        self,
        store: SnapshotStore,
        codec: SnapshotCodec[StateT],
        *,
        every: int = EVERY,
        every_s: float = EVERY_S,
        refold: bool = False,
        run: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        self._store = store
        self._codec = codec
        self._every = every
        self._every_s = every_s
        self._refold = refold
        self._run = run
        self._since = 0
        self._written_at: datetime | None = None
        self._idle = threading.Event()
        self._idle.set()

    def restore(
        self,
        bus: Bus,
        decider: Decider[StateT, Any],
        place: TopicPartition,
        progress: Progress = no_progress,
    ) -> Folded[StateT] | None:
        """The state at the end of the log, by the newest snapshot that holds; None: there is none.

        Raises BusError, and Interrupted of `progress`.
        """
        if self._refold:
            log.warning("snapshots are skipped because of GANGLINE_REFOLD", service=decider.name)
            return None
        kept = self._kept(decider.name, place.partition)
        for data in kept:
            try:
                folded = self._restored(data, bus, decider, place, progress)
            except (BusError, Interrupted):
                raise
            except Exception as error:  # noqa: BLE001 - the log decides, whatever a snapshot does
                log.warning(
                    "snapshot skipped",
                    service=decider.name,
                    shard=place.partition,
                    reason=f"{type(error).__name__}: {error}"[:500],
                )
            else:
                return folded
        return None

    def stored(
        self, decider: Decider[StateT, Any], place: TopicPartition
    ) -> Iterator[Folded[StateT]]:
        """The stored states, newest first, without the events after them.

        Whether they belong to this log is not checked: `fold_on` does.
        """
        for data in self._kept(decider.name, place.partition):
            try:
                yield self._loaded(*self._opened(data, decider, place))
            except Exception as error:  # noqa: BLE001 - as in `restore`
                log.warning("snapshot skipped", service=decider.name, reason=str(error)[:500])

    def due(self, next_seq: int, now: datetime) -> bool:
        """Whether to `write` the state before this event. The first call begins the time."""
        if self._written_at is None or now < self._written_at:
            self._written_at = now
        came, age_s = next_seq - self._since, (now - self._written_at).total_seconds()
        return self._idle.is_set() and (came >= self._every or (came > 0 and age_s > self._every_s))

    def write(
        self, service: str, place: TopicPartition, folded: Folded[StateT], offset: int
    ) -> None:
        """Write the state as it is now, of which nothing is open; `offset`: see SnapshotHeader."""
        self._since, self._written_at = folded.next_seq, None
        self._idle.clear()
        header = SnapshotHeader(
            format=FORMAT,
            state=self._codec.version,
            form=self._codec.form,
            service=service,
            shard=place.partition,
            next_seq=folded.next_seq,
            writer_epoch=folded.writer_epoch,
            offset=offset,
            last=folded.last,
            inputs=_by_topic(folded.inputs),
        )
        facts = self._codec.copy(folded.state)
        self._run(lambda: self._write(header, facts))

    def lacks(self, next_seq: int) -> bool:
        """Whether events came since the last one."""
        return next_seq > self._since

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is being written; False when that took longer."""
        return self._idle.wait(timeout_s)

    def _write(self, header: SnapshotHeader, facts: Facts) -> None:
        where = {"service": header.service, "shard": header.shard, "seq": header.next_seq}
        try:
            data = pack(header, self._codec.dump(facts))
            self._store.put(header, data)
        except Exception as error:  # noqa: BLE001 - the next one may succeed; nothing rests on it
            log.warning("snapshot not written", **where, reason=f"{type(error).__name__}: {error}")
        else:
            log.info("snapshot written", **where, size_bytes=len(data))
        finally:
            self._idle.set()

    def _kept(self, service: str, shard: int) -> Iterator[bytes]:
        try:
            yield from self._store.newest(service, shard)
        except Exception as error:  # noqa: BLE001 - a store that is away costs time, not truth
            log.warning("snapshots not read", service=service, shard=shard, reason=str(error))

    def _restored(
        self,
        data: bytes,
        bus: Bus,
        decider: Decider[StateT, Any],
        place: TopicPartition,
        progress: Progress,
    ) -> Folded[StateT]:
        header, lines = self._opened(data, decider, place)
        folded = self._loaded(header, counted(lines, lambda: progress(0, header.offset)))
        fold_on(bus, decider, place, folded, progress=progress)
        violations = decider.check(folded.state)
        if violations:
            raise SnapshotRefused(violations[0])
        self._since = header.next_seq
        log.info(
            "restored a snapshot",
            service=decider.name,
            shard=place.partition,
            seq=header.next_seq,
            tail=folded.next_seq - header.next_seq,
        )
        return folded

    def _opened(
        self, data: bytes, decider: Decider[StateT, Any], place: TopicPartition
    ) -> tuple[SnapshotHeader, Iterator[bytes]]:
        header, lines = unpack(data)
        mine = (FORMAT, decider.name, place.partition)
        if (header.format, header.service, header.shard) != mine:
            raise SnapshotRefused("it is of another format, service or shard")
        if not self._codec.reads(header.state, header.form):
            raise SnapshotRefused(f"state format {header.state} cannot be read by this version")
        return header, lines

    def _loaded(self, header: SnapshotHeader, lines: Iterable[bytes]) -> Folded[StateT]:
        return Folded(
            self._codec.load(lines, header.state),
            header.next_seq,
            header.writer_epoch,
            header.last,
            _by_place(header.inputs),
            header.offset,
        )


def _by_topic(inputs: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for place, offset in inputs.items():
        found.setdefault(place.topic, {})[place.partition] = offset
    return found


def _by_place(inputs: Mapping[str, Mapping[int, int]]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, at): n for topic, of in inputs.items() for at, n in of.items()}


def pack(header: SnapshotHeader, lines: Iterable[bytes]) -> bytes:
    """The bytes of a snapshot: the digest of the rest, the header, the compressed lines."""
    packer = zlib.compressobj(_LEVEL)
    body = b"".join(packer.compress(line) for line in lines) + packer.flush()
    rest = header.encode() + b"\n" + body
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def unpack(data: bytes) -> tuple[SnapshotHeader, Iterator[bytes]]:
    """The header and the lines. Raises SnapshotRefused when it is damaged."""
    digest, _, rest = data.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        raise SnapshotRefused("its bytes are not those that were written")
    head, _, body = rest.partition(b"\n")
    try:
        header = SnapshotHeader.decode(head)
    except ValidationError:
        raise SnapshotRefused("it is of another format") from None
    return header, _lines(body)


def _lines(body: bytes) -> Iterator[bytes]:
    return iter(zlib.decompress(body).splitlines(keepends=True))


def counted(lines: Iterable[bytes], beat: Callable[[], None]) -> Iterator[bytes]:
    """The lines; `beat` is called after each."""
    for line in lines:
        yield line
        beat()
