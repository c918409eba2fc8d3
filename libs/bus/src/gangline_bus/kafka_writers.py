"""Writing to Kafka: streams at least once, decision logs by transactions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPlace

from gangline_bus.kafka_client import API_TIMEOUT_S, PRODUCER, TAKEOVER_TIMEOUT_S, translate
from gangline_bus.kafka_denials import Denials, WeakProducer
from gangline_bus.ports import BusError, BusUnavailable, Note, OutRecord, TopicPartition

_LOOK_EVERY_S = 0.5


class Connection(Protocol):
    """The bus, as its transactional writers need it."""

    @property
    def base(self) -> Mapping[str, Any]:
        """Settings of every client of this process."""

    @property
    def denials(self) -> Denials:
        """Kafka's refusals of this process."""

    def on_error(self, error: KafkaError) -> None:
        """A client's error that no call returned."""

    def group_metadata(self, group: str) -> Any:
        """The metadata with which a transaction commits offsets of a group without members."""


class KafkaWriter:
    """`ports.Writer`. Deliveries are reported from a poller thread of its own."""

    def __init__(self, settings: Mapping[str, Any], denials: Denials) -> None:
        self._denials = denials
        self._producer = WeakProducer(dict(settings))
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="bus-deliveries", daemon=True)
        self._poller.start()

    def send(
        self, record: OutRecord, on_delivery: Callable[[BusError | None], None] | None = None
    ) -> None:
        """Queue a record; BusUnavailable when the queue is full."""

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self._denials.let_in()
            failed = None if error is None else self._denials.error(error, right)
            if on_delivery is not None:
                on_delivery(failed)

        right = f"Write on the topic {record.topic}"

        place: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
        try:
            self._producer.produce(
                record.topic,
                value=record.value,
                key=record.key,
                headers=list(record.headers),
                on_delivery=delivered,
                **place,
            )
        except BufferError:
            raise BusUnavailable("the queue to the bus is full") from None
        except KafkaException as error:
            raise self._denials.error(error, right) from error

    def flush(self, timeout_s: float) -> int:
        """How many records still wait after `timeout_s`."""
        return int(self._producer.flush(timeout_s))

    def close(self) -> None:
        """Flush for up to 5 s."""
        self._producer.flush(API_TIMEOUT_S)
        self._closing.set()
        self._poller.join(1.0)

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.1)
            self._denials.renew(self._producer)


class KafkaTransactionalWriter:
    """`ports.TransactionalWriter`.

    librdkafka's transactional producer often hangs for good once its broker was killed and is
    back, whatever timeouts it was given. So losing the connection is an end in itself: the process
    that starts instead waits for the broker, and decides as soon as it is there.
    """

    def __init__(self, bus: Connection, transactional_id: str) -> None:
        self._bus = bus
        self._failure: BusError | None = None
        self._ready = self._closing = False
        self._producer = WeakProducer(
            {
                **bus.base,
                **PRODUCER,
                "linger.ms": 0,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 60_000,
                "message.timeout.ms": 60_000,
                "error_cb": self._on_error,
            }
        )
        bus.denials.renew(self._producer)
        try:
            self._producer.init_transactions(TAKEOVER_TIMEOUT_S)
        except KafkaException as error:
            right = f"Write on the transactional id {transactional_id}"
            raise bus.denials.error(error, right) from error
        bus.denials.let_in()
        self._producer.poll(0)
        self._ready = True
        # Errors are served by a thread of their own, as `commit` may be what hangs.
        server = threading.Thread(
            target=_serve_errors, args=(weakref.ref(self),), name="bus-errors", daemon=True
        )
        server.start()

    def commit(
        self,
        records: Sequence[OutRecord],
        offsets: Mapping[TopicPartition, int],
        group: str,
        note: Note | None = None,
    ) -> None:
        """Begin, produce, add the offsets, commit; any failure is final for this writer."""
        if self._failure is not None:
            raise self._failure
        try:
            self._producer.begin_transaction()
            for record in records:
                self._produce(record)
            if offsets:
                places = [KafkaPlace(at.topic, at.partition, n) for at, n in offsets.items()]
                self._send_offsets(group, places)
            if note is not None:
                topic, partition = note.place
                self._send_offsets(note.group, [KafkaPlace(topic, partition, 0, note.text)])
            self._producer.commit_transaction(API_TIMEOUT_S)
        except KafkaException as error:
            self._failure = self._bus.denials.error(error, _right(error, records, group))
            raise self._failure from error
        except (BufferError, SystemError) as error:
            self._failure = BusError(f"the client failed: {error}")
            raise self._failure from error

    def check_connection(self) -> None:
        """No broker left, or being fenced, is final for this writer."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Nothing is open between two commits."""
        self._closing = True

    def _send_offsets(self, group: str, places: list[KafkaPlace]) -> None:
        metadata = self._bus.group_metadata(group)
        self._producer.send_offsets_to_transaction(places, metadata, API_TIMEOUT_S)

    def _on_error(self, error: KafkaError) -> None:
        self._bus.on_error(error)
        # Trouble on the way to the first connection has been overcome.
        if self._ready and error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._failure = BusUnavailable("the connection to the bus was lost")

    def _produce(self, record: OutRecord) -> None:
        place: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
        self._producer.produce(
            record.topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            **place,
        )


def _right(error: KafkaException, records: Sequence[OutRecord], group: str) -> str:
    """The right that a transaction may have lacked."""
    if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return f"Read on the group {group}"
    return f"Write on {' or '.join(sorted({record.topic for record in records}))}"


def _serve_errors(writer: weakref.ref[KafkaTransactionalWriter]) -> None:
    """Watch until the writer is closed or garbage-collected.

    It polls at intervals and never waits in `poll`: `commit` waits there for its deliveries, and
    sleeps 10 ms longer when another thread has taken them away.
    """
    pause = threading.Event()
    while (held := writer()) is not None and not held._closing:
        producer = held._producer
        del held
        try:
            producer.poll(0)
            if (held := writer()) is not None:
                held._bus.denials.renew(producer)
            del held
        except KafkaException as error:
            if (failed := writer()) is not None:
                failed._failure = failed._failure or translate(error)
            return
        del producer
        pause.wait(_LOOK_EVERY_S)
