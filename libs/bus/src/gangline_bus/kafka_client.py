"""Shared parts of the Kafka implementation: client settings, timeouts, errors."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

from gangline_bus.ports import MAX_RECORD_BYTES, BusError, BusUnavailable, Fenced

API_TIMEOUT_S = 5.0
TAKEOVER_TIMEOUT_S = 30.0
SESSION_TIMEOUT_MS = 6000
FENCED_CODES = {
    KafkaError._FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
COMPACTED = {
    # Small segments that are soon closed: a reader from the start reads little more than a record
    # of each key, since the newest segment is never compacted.
    "cleanup.policy": "compact,delete",
    "segment.bytes": str(8 << 20),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.2",
}
TRANSIENT_CODES = {
    # While partitions get or change their leader, and topics become known.
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    # The connection that was asked gave way to another, as the bootstrap one does at the start.
    KafkaError._DESTROY,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
AWAY_CODES = {KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}
PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 2,
    "retry.backoff.ms": 10,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 65_536,
    "message.max.bytes": MAX_RECORD_BYTES,
}
PATIENT: dict[str, Any] = {"fetch.min.bytes": 65_536, "fetch.wait.max.ms": 250}
"""The broker answers once it has that much, or after this time."""
CONSUMER: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # How long the broker keeps a question without an answer: new records end the wait at once.
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 100,
    "queued.max.messages.kbytes": 32_768,
    "allow.auto.create.topics": False,
}


def translate(error: KafkaError | KafkaException) -> BusError:
    """The client's error in the words of the port."""
    inner = error.args[0] if isinstance(error, KafkaException) else error
    if inner.code() in FENCED_CODES:
        return Fenced(inner.str())
    if inner.code() in AWAY_CODES:
        return BusUnavailable(inner.str())
    return BusError(f"{inner.name()}: {inner.str()}")
