"""Writes to a real Kafka what no well-behaved client writes."""

from __future__ import annotations

import ctypes
import uuid
from pathlib import Path

import confluent_kafka
from confluent_kafka import Producer

KEY = b"all-in-one-partition"
_VALUE = b'{"job_id": "a"}'
_ARGUMENTS = {"topic": 1, "partition": 3, "value": 4, "key": 5, "flags": 7, "header": 9}
_SETTINGS = ((b"compression.type", b"zstd"), (b"partitioner", b"murmur2_random"))
_COPY = 2

Headers = list[tuple[str, bytes]]


def attributes(kind: str, subject: str = "bad") -> Headers:
    """The headers of an event of a published type."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", uuid.uuid4().hex.encode()),
        ("ce_source", b"/hostile"),
        ("ce_type", kind.encode()),
        ("ce_subject", subject.encode()),
    ]


class HostileWriter:
    """A client that may write to a topic. All records have one key."""

    def __init__(self, bootstrap: str, topic: str, headers: Headers) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._headers = headers

    def send(
        self,
        value: bytes | None,
        *,
        times: int = 1,
        at_ms: int = 0,
        codec: str = "none",
    ) -> int:
        """Write as a client without any limits does; how many records the broker refused."""
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "message.max.bytes": 1_000_000_000,
                "queue.buffering.max.kbytes": 2_000_000,
                "batch.size": 500_000_000,
                "linger.ms": 500 if times > 1 else 0,
                "compression.type": codec,
                "partitioner": "murmur2_random",
            }
        )
        failed: list[object] = []
        for _ in range(times):
            producer.produce(
                self._topic,
                value=value,
                headers=self._headers,
                key=KEY,
                timestamp=at_ms,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert producer.flush(60) == 0
        return len(failed)

    def raw_header(self, name: bytes, *, times: int) -> None:
        """Write by librdkafka itself: its Python client writes no such name."""
        folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
        library = ctypes.CDLL(str(next(folder.glob("librdkafka*.so*"))))
        library.rd_kafka_conf_new.restype = ctypes.c_void_p
        library.rd_kafka_new.restype = ctypes.c_void_p
        settings = ctypes.c_void_p(library.rd_kafka_conf_new())
        error = ctypes.create_string_buffer(512)
        # Of another codec than the topic's, the broker would look at each record and refuse it.
        for setting, text in ((b"bootstrap.servers", self._bootstrap.encode()), *_SETTINGS):
            library.rd_kafka_conf_set(settings, setting, text, error, ctypes.c_size_t(512))
        client = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, ctypes.c_size_t(512)))
        number = {at: ctypes.c_int(code) for at, code in _ARGUMENTS.items()}
        arguments: list[object] = [
            number["topic"],
            ctypes.c_char_p(self._topic.encode()),
            number["partition"],
            ctypes.c_int32(-1),
            number["value"],
            ctypes.c_char_p(_VALUE),
            ctypes.c_size_t(len(_VALUE)),
            number["key"],
            ctypes.c_char_p(KEY),
            ctypes.c_size_t(len(KEY)),
            number["flags"],
            ctypes.c_int(_COPY),
        ]
        raw = [(key.encode(), text) for key, text in self._headers]
        for header, text in (*raw, (name, b"v")):
            arguments += [number["header"], ctypes.c_char_p(header), ctypes.c_char_p(text)]
            arguments.append(ctypes.c_ssize_t(len(text)))
        for _ in range(times):
            assert library.rd_kafka_producev(client, *arguments, ctypes.c_int(0)) == 0
        assert library.rd_kafka_flush(client, 10_000) == 0
        library.rd_kafka_destroy(client)
