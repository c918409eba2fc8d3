"""Snapshots: the state at a place of its log, so that a takeover folds only what came after.

A snapshot is a help and never a truth: whatever is wrong with one, it is passed over with a
warning, and the log is folded from an older one or from its start.

Writing, by the leader, when `every` events came since the last one
1. Ask for the log's end: the offset from which a successor will read.
2. After the next commit: copy the facts (frozen values: a copy of the dicts) and go on.
3. Elsewhere (`run`: a thread): dump, compress, put. One at a time; an error is a warning.

Restoring, at a takeover, newest first
1. The bytes are whole (sha256), and are of this service, shard, format and code.
2. The log still reaches there, and the event before the snapshot's place is the one that it names
   (id and time): it is a snapshot of this log. That is why step 2 of writing waits: the event is
   behind the offset.
3. The tail folds with all of fold.py's checks, and the result keeps the invariants.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Generic, Protocol, TypeVar

import structlog
from pydantic import Field, ValidationError

from gangline_bus.decision import Decider
from gangline_bus.fold import Folded, Interrupted, Progress, fold_tail, unheard
from gangline_bus.ports import Bus, BusError, TopicPartition
from gangline_bus.state_json import Facts
from gangline_schemas.base import Model

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")

FORMAT = 1
EVERY = 20_000
_LEVEL = 1  # a quarter of the size for a tenth of the time of the default level


class SnapshotCodec(Protocol[StateT]):
    """How a service's state becomes bytes. Never pickle: a store is no place for code."""

    def copy(self, state: StateT) -> Facts:
        """The facts as they are now, for `dump` in another thread."""

    def dump(self, facts: Facts) -> Iterable[bytes]:
        """The facts, as lines that end with a newline."""

    def load(self, lines: Iterable[bytes]) -> StateT:
        """The state of these lines: the same fingerprint and the same further decisions."""


class SnapshotStore(Protocol):
    """Where snapshots are kept. Both may raise anything: nothing depends on them."""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        """The kept snapshots, newest first, each read when it is asked for."""

    def put(self, service: str, shard: int, next_seq: int, data: bytes) -> None:
        """Keep one, whole or not at all; the oldest ones go."""


class SnapshotHeader(Model):
    """What a snapshot is of. Events from `next_seq` on stand at `offset` or later.

    `inputs` are the next offsets that the log named before, by topic and partition.
    """

    format: int
    code: str
    service: str
    shard: int
    next_seq: int
    writer_epoch: int
    offset: int
    last: str
    inputs: dict[str, dict[int, int]] = Field(default_factory=dict)


class SnapshotRefused(Exception):
    """Not a snapshot of this state's log and code, or damaged; the message says which."""


class Snapshots(Generic[StateT]):
    """Writes and restores the snapshots of one shard of one decider."""

    def __init__(
        self,
        store: SnapshotStore,
        codec: SnapshotCodec[StateT],
        *,
        code: str,
        every: int = EVERY,
        run: Callable[[Callable[[], None]], object] = lambda work: work(),
    ) -> None:
        self._store = store
        self._codec = codec
        self._code = code
        self._every = every
        self._run = run
        self._since = 0
        self._mark: tuple[int, int] | None = None
        self._writing = False

    def restore(
        self,
        bus: Bus,
        decider: Decider[StateT],
        place: TopicPartition,
        progress: Progress = unheard,
    ) -> Folded[StateT] | None:
        """The state at the end of the log, by the newest snapshot that holds; None: there is none.

        Raises BusError, and Interrupted of `progress`.
        """
        kept = self._kept(decider.name, place.partition)
        for data in kept:
            try:
                folded = self._restored(data, bus, decider, place, progress)
            except (BusError, Interrupted):
                raise
            except Exception as error:  # noqa: BLE001 - the log decides, whatever a snapshot does
                log.warning(
                    "snapshot passed over",
                    service=decider.name,
                    shard=place.partition,
                    reason=f"{type(error).__name__}: {error}"[:500],
                )
            else:
                return folded
        return None

    def committed(
        self, bus: Bus, service: str, place: TopicPartition, folded: Folded[StateT]
    ) -> None:
        """To be called after each commit: write a snapshot if one is due. Raises BusError."""
        if self._writing:
            return
        if self._mark is None:
            if folded.next_seq - self._since >= self._every:
                self._mark = (bus.end_offsets([place])[place], folded.next_seq)
            return
        offset, marked_seq = self._mark
        if folded.next_seq == marked_seq:
            return
        self._mark, self._since, self._writing = None, folded.next_seq, True
        header = SnapshotHeader(
            format=FORMAT,
            code=self._code,
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

    def _write(self, header: SnapshotHeader, facts: Facts) -> None:
        where = {"service": header.service, "shard": header.shard, "seq": header.next_seq}
        try:
            data = pack(header, self._codec.dump(facts))
            self._store.put(header.service, header.shard, header.next_seq, data)
        except Exception as error:  # noqa: BLE001 - the next one may succeed; nothing rests on it
            log.warning("snapshot not written", **where, reason=f"{type(error).__name__}: {error}")
        else:
            log.info("snapshot written", **where, size_bytes=len(data))
        finally:
            self._writing = False

    def _kept(self, service: str, shard: int) -> Iterator[bytes]:
        try:
            yield from self._store.newest(service, shard)
        except Exception as error:  # noqa: BLE001 - a store that is away costs time, not truth
            log.warning("snapshots not read", service=service, shard=shard, reason=str(error))

    def _restored(
        self,
        data: bytes,
        bus: Bus,
        decider: Decider[StateT],
        place: TopicPartition,
        progress: Progress,
    ) -> Folded[StateT]:
        header, lines = unpack(data)
        mine = (FORMAT, self._code, decider.name, place.partition)
        if (header.format, header.code, header.service, header.shard) != mine:
            raise SnapshotRefused("it is of another version, service or shard")
        state = self._codec.load(counted(lines, lambda: progress(0, header.offset)))
        folded = Folded(
            state, header.next_seq, header.writer_epoch, header.last, _by_place(header.inputs)
        )
        fold_tail(bus, decider, place, folded, header.offset, progress=progress)
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


def code_hash(*packages: str) -> str:
    """sha256 of all sources of these packages: another version of them folds for itself."""
    digest = hashlib.sha256()
    for package in packages:
        for name, content in _sources(resources.files(package), package):
            digest.update(f"{name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, f"{name}/{entry.name}")
        elif entry.name.endswith((".py", ".yaml")):
            yield f"{name}/{entry.name}", entry.read_bytes()
