"""`ports.Bus` over Apache Kafka with confluent-kafka's synchronous client.

Each object here belongs to the thread that made it, except that delivery callbacks of a `Writer`
come from its own poller thread. Crash-only: short API timeouts, no abort-and-carry-on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gangline_bus.kafka_client import (
    API_TIMEOUT_S,
    AWAY_CODES,
    COMPACTED,
    CONSUMER,
    PATIENT,
    PRODUCER,
    SESSION_TIMEOUT_MS,
    TAKEOVER_TIMEOUT_S,
    TRANSIENT_CODES,
)
from gangline_bus.kafka_denials import DENIED_CODES, Denials, WeakConsumer
from gangline_bus.kafka_readers import KafkaMember, KafkaReader
from gangline_bus.kafka_token import TokenFile, client_settings
from gangline_bus.kafka_writers import KafkaTransactionalWriter, KafkaWriter
from gangline_bus.ports import BusDenied, BusError, BusUnavailable, TopicPartition, TopicSettings
from gangline_bus.topics import STREAM_COMPRESSION


def _slices(timeout_s: float) -> list[float]:
    """Growing parts of a time: what was refused is noticed between them."""
    found: list[float] = []
    slice_s = 0.5
    while sum(found) + 2 * slice_s < timeout_s:
        found.append(slice_s)
        slice_s *= 2
    return [*found, timeout_s - sum(found)]


class KafkaBus:
    """One process's connection. `settings` are further librdkafka settings (security, ...).

    They may name a file with a token (`kafka_token`).

    `password` reads the present password of its principal. `on_denied` is called, in any thread, if
    Kafka refuses the process; the call that needed it raises BusDenied.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        client: str = "gangline",
        settings: Mapping[str, str] | None = None,
        instance: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        password: Callable[[], str] | None = None,
        on_denied: Callable[[BusDenied], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._instance = instance
        self._session_timeout_ms = session_timeout_ms
        self._token = TokenFile.named(settings or {})
        self.denials = Denials(settings or {}, password, on_denied, token=self._token)
        self._base: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": client,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "socket.connection.setup.timeout.ms": 5000,
            "log_level": 2,  # connection errors come through error_cb
            "error_cb": self.on_error,
            **client_settings(settings or {}, self._token),
        }
        self._admin: AdminClient | None = None
        self._probes: dict[tuple[str, str], WeakConsumer] = {}

    @property
    def base(self) -> dict[str, Any]:
        """The settings of every client. Raises BusUnavailable without a good token."""
        if self._token is not None:
            self._token.read()
        return self._base

    def on_error(self, error: KafkaError) -> None:
        """An error that no call returned: the client recovers by itself, unless it is refused."""
        self.denials.on_error(error)

    def create_topics(self, topics: Iterable[TopicSettings]) -> None:
        """Create what is missing, one replica where the cluster has one broker, else three."""
        admin = self._admin_client()
        metadata = self._metadata(None, TAKEOVER_TIMEOUT_S)
        replicas = min(3, max(1, len(metadata.brokers)))
        missing = [topic for topic in topics if topic.name not in metadata.topics]
        futures = (
            admin.create_topics(
                [
                    NewTopic(
                        topic.name,
                        num_partitions=topic.partitions,
                        replication_factor=replicas,
                        config={
                            **(COMPACTED if topic.compacted else {}),
                            "retention.ms": str(topic.retention_ms),
                            "min.insync.replicas": "2" if replicas == 3 else "1",
                            "max.message.bytes": "4194304",
                            "compression.type": topic.compression,
                        },
                    )
                    for topic in missing
                ],
                operation_timeout=TAKEOVER_TIMEOUT_S,
            )
            if missing
            else {}
        )
        for name, future in futures.items():
            try:
                future.result(TAKEOVER_TIMEOUT_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code in DENIED_CODES:
                    raise self.denials.error(error, f"Create on the topic {name}") from error
                if code != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BusError(f"cannot create {name}: {error.args[0].str()}") from error

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        metadata = self._metadata(topic, API_TIMEOUT_S)
        found = metadata.topics.get(topic)
        if found is not None and found.error is not None and found.error.code() in DENIED_CODES:
            raise self.denials.error(found.error, f"Describe on the topic {topic}")
        if found is None or found.error is not None or not found.partitions:
            raise BusError(f"no such topic: {topic}; `gangline up` creates missing topics")
        return len(found.partitions)

    def end_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Last stable offsets, asked of the broker (the probe reads committed records)."""
        return {place: self._watermarks(place)[1] for place in places}

    def written_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks, asked of the broker by a probe that reads all that is written."""
        return {place: self._watermarks(place, committed=False)[1] for place in places}

    def start_offsets(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Low watermarks, asked of the broker."""
        return {place: self._watermarks(place)[0] for place in places}

    def committed(
        self, group: str, places: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """The group's next offsets, once no open transaction holds them."""
        wanted = [KafkaPlace(place.topic, place.partition) for place in places]
        if not wanted:
            return {}
        answer = self._committed(group, wanted)
        return {
            TopicPartition(item.topic, item.partition): item.offset if item.offset >= 0 else None
            for item in answer
        }

    def note(self, group: str, place: TopicPartition) -> str:
        """The metadata of the group's committed offset, once no open transaction holds it."""
        answer = self._committed(group, [KafkaPlace(place.topic, place.partition)])
        return str(answer[0].metadata or "")

    def writer(self, *, prompt: bool = False) -> KafkaWriter:
        """An idempotent writer with a bounded queue; it compresses as streams are kept."""
        own: dict[str, Any] = {"compression.type": STREAM_COMPRESSION}
        if prompt:
            own["linger.ms"] = 0
        return KafkaWriter({**self.base, **PRODUCER, **own}, self.denials)

    def transactional_writer(self, transactional_id: str) -> KafkaTransactionalWriter:
        """Fence earlier writers of the id."""
        return KafkaTransactionalWriter(self, transactional_id)

    def reader(self, name: str, *, patient: bool = False) -> KafkaReader:
        """A reader outside of any group's membership."""
        own: dict[str, Any] = {"group.id": f"{self._client}.{name}"}
        if patient:
            own |= PATIENT
        return KafkaReader({**self.base, **CONSUMER, **own}, self.denials)

    def join(self, group: str, topic: str) -> KafkaMember:
        """Join with the classic protocol; with an `instance`, a restart takes its place at once."""
        settings = {
            **self.base,
            **CONSUMER,
            "group.id": group,
            "session.timeout.ms": self._session_timeout_ms,
            "heartbeat.interval.ms": max(300, self._session_timeout_ms // 6),
            "partition.assignment.strategy": "cooperative-sticky",
        }
        if self._instance is not None:
            settings["group.instance.id"] = self._instance
        return KafkaMember(settings, topic, self.denials)

    def members(self, group: str) -> int:
        """How many members a group has now; 0 also for a group that never was. Raises BusError."""
        asked = self._admin_client().describe_consumer_groups
        right = f"Describe on the group {group}"

        def count() -> int:
            found = asked([group], request_timeout=API_TIMEOUT_S)[group].result(API_TIMEOUT_S)
            return len(found.members)

        try:
            return int(self._call(count, lambda _: self.denials.lacks(right)))
        except TimeoutError:
            raise BusUnavailable("no answer from the bus in time") from None

    def group_metadata(self, group: str) -> Any:
        """The metadata with which a transaction commits offsets of a group without members."""
        return self._probe(group).consumer_group_metadata()

    def close(self) -> None:
        """Close the connections that answer state queries."""
        for consumer in self._probes.values():
            consumer.close()
        self._probes.clear()

    def _admin_client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient(self.base)
        self.denials.renew(self._admin)
        return self._admin

    def _probe(self, group: str, isolation: str = "read_committed") -> WeakConsumer:
        if (group, isolation) not in self._probes:
            settings = {**self.base, **CONSUMER, "group.id": group, "isolation.level": isolation}
            self._probes[group, isolation] = WeakConsumer(settings)
        probe = self._probes[group, isolation]
        self.denials.renew(probe)
        return probe

    def _watermarks(self, place: TopicPartition, *, committed: bool = True) -> tuple[int, int]:
        group = f"{self._client}.offsets"
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = self._probe(group, isolation)
        at = KafkaPlace(place.topic, place.partition)
        try:
            low, high = self._call(
                lambda: consumer.get_watermark_offsets(at, timeout=API_TIMEOUT_S, cached=False)
            )
        except BusError:
            # A client that saw a topic without a leader may say "unknown partition" ever after.
            del self._probes[group, isolation]
            consumer.close()
            raise
        return int(low), int(high)

    def _metadata(self, topic: str | None, timeout_s: float) -> Any:
        """Raises BusDenied soon where the credentials are refused."""
        admin = self._admin_client()
        *first, last_s = _slices(timeout_s)
        for slice_s in first:
            try:
                found = admin.list_topics(topic, timeout=slice_s)
            except KafkaException as error:
                admin.poll(0)
                self._renew_refused(admin)
                if error.args[0].code() not in AWAY_CODES:
                    break
            else:
                self.denials.let_in()
                return found
        try:
            return self._call(lambda: admin.list_topics(topic, timeout=last_s))
        except BusUnavailable:
            admin.poll(0)
            self._renew_refused(admin)
            raise

    def _renew_refused(self, client: AdminClient | WeakConsumer) -> None:
        """Raise BusDenied if Kafka refuses for good; else the client gets the present password."""
        self.denials.check()
        self.denials.renew(client)

    def _committed(self, group: str, places: list[KafkaPlace]) -> list[KafkaPlace]:
        """Offsets of a group; without the right to read them, librdkafka asks until the end."""
        consumer = self._probe(group)
        for slice_s in _slices(TAKEOVER_TIMEOUT_S):
            try:
                found: list[KafkaPlace] = self._call(partial(consumer.committed, places, slice_s))
            except BusUnavailable as error:
                away = error
                message = consumer.poll(0)
                told = None if message is None else message.error()
                if told is not None and told.code() in DENIED_CODES:
                    raise self.denials.error(told, f"Read on the group {group}") from None
                self._renew_refused(consumer)
            else:
                return found
        raise away

    def _call(
        self,
        work: Callable[[], Any],
        failed: Callable[[KafkaException], BusError] | None = None,
    ) -> Any:
        """Ask the broker; passing trouble (a new topic, an election) is waited for, for 5 s.

        `failed`: the error for a right that is missing.
        """
        deadline = time.monotonic() + API_TIMEOUT_S
        while True:
            try:
                answer = work()
            except KafkaException as error:
                if error.args[0].code() in TRANSIENT_CODES and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                if failed is not None and error.args[0].code() in DENIED_CODES:
                    raise failed(error) from error
                raise self.denials.error(error) from error
            if answer is None:
                raise BusUnavailable("no answer from the bus in time")
            return answer
