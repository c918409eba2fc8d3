"""Publishes requests to the bus: a request is accepted once the bus acknowledges it."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

import structlog

from gangline_bus.codec import encode
from gangline_bus.ports import BusError, Writer
from gangline_bus.topics import TopicNames
from gangline_bus.tracing import current
from gangline_gateway.problems import ProblemError, unavailable
from gangline_schemas.base import Event
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope

log = structlog.get_logger(__name__)
ACK_TIMEOUT_S = 5.0
SOURCE = "/gangline/gateway"


class Publisher:
    """Sends requests and waits for their acknowledgement."""

    def __init__(self, writer: Writer, names: TopicNames) -> None:
        self._writer = writer
        self._names = names

    async def publish(self, subject: str, event: Event, request_id: str | None = None) -> str:
        """Publishes with this subject as the key; returns the event's ce_id.

        `request_id`: the ce_id, of a request that may be repeated; default: a new one.

        Raises a 503 problem if the bus did not acknowledge it in time: it may still arrive.
        """
        request_id = request_id or str(uuid.uuid4())
        envelope = Envelope(
            id=request_id,
            source=SOURCE,
            time=datetime.now(UTC),
            subject=subject,
            data=event,
            traceparent=current(),
        )
        record = encode(envelope, topic=self._names.name(topic_of(event.type)))
        loop = asyncio.get_running_loop()
        safe: asyncio.Future[BusError | None] = loop.create_future()

        def delivered(error: BusError | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, safe, error)

        try:
            self._writer.send(record, delivered)
            error = await asyncio.wait_for(safe, ACK_TIMEOUT_S)
        except (BusError, TimeoutError) as problem:
            raise _away(type(problem).__name__) from None
        if error is not None:
            raise _away(type(error).__name__)
        return request_id


def _settle(safe: asyncio.Future[BusError | None], error: BusError | None) -> None:
    if not safe.done():
        safe.set_result(error)


def _away(kind: str) -> ProblemError:
    log.error("request not acknowledged by the bus", error=kind)
    return unavailable(
        "bus-away",
        "the bus did not acknowledge the request, which may still arrive there; "
        "repeat it with the same Idempotency-Key so that it counts once",
    )
