"""The interface of a bus. Two implementations keep its promises: `kafka` and `memory`.

Promises, tested by one contract suite over both
- Records of one partition are read in the order in which they were written; equal keys share a
  partition.
- Readers that read committed records, which all readers here do, see a transaction's records and
  offsets whole or not at all.
- Opening a transactional writer fences every earlier one of the same id: it commits nothing more.
- `send` of a plain writer is at-least-once and never reorders one key.

Nothing is repaired in place. After any `BusError` from a transactional writer its process ends, and
a new one rebuilds its state from the log. A librdkafka producer that lost its broker in a
transaction can hang for ever, and a late abort can hit the next transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, bytes], ...]
MAX_RECORD_BYTES = 4_000_000
"""The largest record that a writer takes."""


class BusError(Exception):
    """The bus did not do what was asked; for a decider this ends the process."""


class Fenced(BusError):
    """A newer writer with the same transactional id took over."""


class BusUnavailable(BusError):
    """The bus could not be reached in time."""


class BusDenied(BusError):
    """The bus refuses the process: its credentials, or a right that the message names.

    To wait does not help: a service ends at once.
    """


class TopicPartition(NamedTuple):
    """One partition of a topic (the full name, with prefix).

    A tuple, since it is the key of every dict of positions: it is hashed and compared in C.
    """

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OutRecord:
    """A record to write. `partition` None: chosen by the key's hash (murmur2, as Java does)."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers = ()
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read. `timestamp_ms` is Unix time.

    `damage` says what of it the client could not read; "" when all is there.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: Headers
    timestamp_ms: int
    damage: str = ""

    @property
    def place(self) -> TopicPartition:
        """The partition it was read from."""
        return TopicPartition(self.topic, self.partition)


class Note(NamedTuple):
    """A text of at most 4 KB that the bus keeps with the committed offset of a group's place."""

    group: str
    place: TopicPartition
    text: str


class Writer(Protocol):
    """Writes to streams, at least once. Bounded queue: `send` raises BusUnavailable when full."""

    def send(
        self, record: OutRecord, on_delivery: Callable[[BusError | None], None] | None = None
    ) -> None:
        """Queue a record; `on_delivery` is called (from any thread) when it is safe or lost."""

    def flush(self, timeout_s: float) -> int:
        """Wait until everything queued is safe or lost; how many records still wait."""

    def close(self) -> None:
        """Flush for a short while and close."""


class TransactionalWriter(Protocol):
    """The only writer of a log partition. Any error is final: end the process."""

    def commit(
        self,
        records: Sequence[OutRecord],
        offsets: Mapping[TopicPartition, int],
        group: str,
        note: Note | None = None,
    ) -> None:
        """Write the records, the group's next offsets and the note as one transaction.

        Raises Fenced when a newer writer exists, BusError when the outcome is unknown.
        """

    def check_connection(self) -> None:
        """Raise a BusError when the bus was lost or this writer fenced since: end the process.

        Never waits, and may be asked from any thread, also while `commit` hangs.
        """

    def close(self) -> None:
        """Close without an open transaction."""


class Reader(Protocol):
    """Reads chosen partitions from chosen offsets, committed records only."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, replacing what was assigned."""

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        """Up to `max_records`, waiting up to `timeout_s` for the first; [] when there is none."""

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, past control records once their end was seen."""

    def behind(self) -> dict[TopicPartition, int]:
        """Records of each partition that were not polled yet, as far as is known; never asks."""

    def close(self) -> None:
        """Close the reader."""


class Member(Protocol):
    """Membership in a group whose members share a topic's partitions, one owner each."""

    def owned(self, timeout_s: float) -> frozenset[int]:
        """Serve the membership for up to `timeout_s`; the partitions owned now."""

    def close(self) -> None:
        """Leave the group, so that others take over at once."""


class Bus(Protocol):
    """Everything a service needs of the bus. Topic names are full names (with prefix)."""

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        """Create what is missing; existing topics are left as they are."""

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises BusError when it does not exist."""

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset up to which readers can read now: the last stable offset.

        A transaction shows up here shortly after `commit` returned, when the broker has written
        its markers; opening a writer of the same transactional id waits for that.
        """

    def written_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record, of transactions that have not ended too."""

    def start_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset still kept of each partition."""

    def committed(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """The group's committed next offsets; waits for open transactions on them to end."""

    def note(self, group: str, place: TopicPartition) -> str:
        """The text of the last committed note there; "" when there is none."""

    def writer(self, *, prompt: bool = False) -> Writer:
        """A writer for streams. `prompt`: a record is not held back to fill a batch."""

    def transactional_writer(self, transactional_id: str) -> TransactionalWriter:
        """The writer of this id; every earlier one is fenced when this returns."""

    def reader(self, name: str, *, patient: bool = False) -> Reader:
        """A reader; `name` stands in the broker's logs and metrics.

        `patient`: records may come 250 ms later, several at once, which costs the broker less.
        """

    def join(self, group: str, topic: str) -> Member:
        """Join the group that shares out `topic`'s partitions."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How to create a topic. `retention_ms` -1: for ever. `compacted`: the newest of each key.

    `compression`: the broker compresses all batches so; `producer`: they stay as they were sent.
    """

    name: str
    partitions: int
    retention_ms: int
    compression: str = "producer"
    compacted: bool = False
