"""The only file that touches faust: the records of gangline.steps, one at a time.

- At least once, concurrency 1 (with more, faust can lose events: its issue 606), no tables.
- A record's offset is committed once `done_to` says that its progress is published.
- aiokafka, below faust, raises at a header whose name is not UTF-8 and at a batch that it cannot
  unpack, and would raise there forever. `aside` then reads that stretch of the topic instead.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import faust
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import (
    ConsumerStoppedError,
    CorruptRecordException,
    KafkaError,
    UnsupportedCodecError,
)
from faust.exceptions import ConsumerNotStarted
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport

from gangline_bus.kafka_token import TokenFile, TokenUnusable
from gangline_bus.ports import Record, TopicPartition
from gangline_tracker.views.security import Security

_SESSION_TIMEOUT_S = 8.0
_COMMIT_S = 2.0
_ITS_OWN = (KafkaError, ConsumerNotStarted, ConsumerStoppedError, OSError)
"""Errors of the connection and of a consumer that stops: faust knows what to do."""
_DAMAGE = (CorruptRecordException, UnsupportedCodecError)

Handle = Callable[[Record], None]
Positions = Mapping[TopicPartition, int]
Aside = Callable[[Positions], tuple[list[Record], Positions]]
"""Reads on from these positions, and says where it came to. Called in the consumer's thread."""


@dataclass(frozen=True)
class Source:
    """The topic to consume, and as whom. With an `instance`, a restart takes its place at once."""

    bootstrap: str
    topic: str
    group: str
    instance: str | None = None
    security: Security = field(default_factory=Security)


class StepStream:
    """Consumes one topic and hands each record over in the loop that started it.

    `marks` gives the number that `done_to` compares with, after each record; it never falls.
    """

    def __init__(
        self, source: Source, handle: Handle, aside: Aside, marks: Callable[[], int]
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gangline-live-")
        self._taken: deque[tuple[int, Any]] = deque()
        self._app: Any = faust.App(
            source.group,
            broker=[f"kafka://{server.strip()}" for server in source.bootstrap.split(",")],
            broker_credentials=_credentials(source.security),
            consumer_group_instance_id=source.instance,
            store="memory://",
            datadir=self._folder.name,
            web_enabled=False,
            autodiscover=False,
            topic_disable_leader=True,
            consumer_auto_offset_reset="earliest",
            broker_commit_interval=_COMMIT_S,
            # Without an instance, the group waits so long for a member that was killed.
            broker_session_timeout=_SESSION_TIMEOUT_S,
            broker_heartbeat_interval=_SESSION_TIMEOUT_S / 4,
            stream_wait_empty=False,
        )
        self._app.transport = _transport(self._app, handle, aside)
        topic = self._app.topic(
            source.topic,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
        )

        async def follow(stream: Any) -> None:
            async for event in stream.noack().events():
                handle(_record(event.message))
                self._taken.append((marks(), event))

        self._app.agent(topic, name="live-steps", concurrency=1)(follow)

    async def start(self) -> None:
        """Join the group and begin."""
        self._app.finalize()
        await self._app.start()

    def done_to(self, mark: int) -> None:
        """Let the offsets of records with marks up to this one be committed."""
        while self._taken and self._taken[0][0] <= mark:
            self._taken.popleft()[1].ack()

    def waiting(self) -> int:
        """Records that were handed over and are not done."""
        return len(self._taken)

    def crashed(self) -> bool:
        """Whether an error has ended it."""
        return bool(self._app.crashed)

    async def stop(self) -> None:
        """Commit and leave."""
        await self._app.stop()
        self._folder.cleanup()


def _transport(app: Any, handle: Handle, aside: Aside) -> Any:
    """Faust's transport, whose consumer does not end at what it cannot read."""
    home = asyncio.get_running_loop()

    class Thread(AIOKafkaConsumerThread):
        async def _fetch_records(
            self,
            consumer: Any,
            active_partitions: Any,
            timeout: float | None = None,  # noqa: ASYNC109 - as its base has it
            max_records: int | None = None,
        ) -> Any:
            try:
                return await super()._fetch_records(
                    consumer, active_partitions, timeout, max_records
                )
            except Exception as error:
                if isinstance(error, _ITS_OWN) and not isinstance(error, _DAMAGE):
                    raise
                places = {TopicPartition(*tp): tp for tp in active_partitions}
                at = {place: await consumer.position(tp) for place, tp in places.items()}
                records, after = aside(at)
                if after == at:
                    raise
            for record in records:
                home.call_soon_threadsafe(handle, record)
            for place, offset in after.items():
                consumer.seek(places[place], offset)
            return {}

    class Reading(Consumer):
        def _new_consumer_thread(self) -> AIOKafkaConsumerThread:
            return Thread(self, loop=self.loop, beacon=self.beacon)

    class Robust(Transport):
        Consumer = Reading

    return Robust(app.conf.broker_consumer, app)


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """The token of each new connection, from its file."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file

    async def token(self) -> str:
        """Raises ConnectionError without a good token: the connection is tried again."""
        try:
            return self._file.give()[0]
        except TokenUnusable as error:
            raise ConnectionError(str(error)) from None


def _credentials(security: Security) -> Any:
    if security.token is not None:
        return faust.OAuthCredentials(oauth_cb=_Tokens(security.token), ssl_context=security.tls)
    if security.mechanism is not None:
        return faust.SASLCredentials(
            username=security.username,
            password=security.password,
            ssl_context=security.tls,
            mechanism=security.mechanism,
        )
    return None if security.tls is None else faust.SSLCredentials(security.tls)


def _record(message: Any) -> Record:
    headers = message.headers or ()
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Record(
        message.topic,
        message.partition,
        message.offset,
        message.key,
        message.value or b"",
        tuple((name, value) for name, value in pairs),
        int((message.timestamp or 0) * 1000),
    )
