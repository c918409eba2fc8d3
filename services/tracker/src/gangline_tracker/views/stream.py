"""The only file that touches faust: a stream of gangline.steps, one record at a time.

At least once, concurrency 1 (with more, faust can lose events: its issue 606), no tables: the view
keeps a window of seconds, which a restart fills again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import faust

from gangline_bus.ports import Record

_SESSION_TIMEOUT_S = 8.0

Handle = Callable[[Record], None]


class StepStream:
    """Consumes one topic and hands each record over; `failed` waits for the end of a broken one."""

    def __init__(self, bootstrap: str, topic: str, group: str, handle: Handle) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gangline-live-")
        self._app: Any = faust.App(
            group,
            broker=[f"kafka://{server.strip()}" for server in bootstrap.split(",")],
            store="memory://",
            datadir=self._folder.name,
            web_enabled=False,
            autodiscover=False,
            topic_disable_leader=True,
            consumer_auto_offset_reset="latest",
            broker_commit_interval=2.0,
            # After a kill -9 the group waits so long for the dead member before it lets us in.
            broker_session_timeout=_SESSION_TIMEOUT_S,
            broker_heartbeat_interval=_SESSION_TIMEOUT_S / 4,
            stream_wait_empty=False,
        )
        source = self._app.topic(
            topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw"
        )

        async def follow(stream: Any) -> None:
            async for event in stream.events():
                handle(_record(event.message))

        self._app.agent(source, name="live-steps", concurrency=1)(follow)

    async def start(self) -> None:
        """Join the group and begin."""
        self._app.finalize()
        await self._app.start()

    def failed(self) -> Awaitable[None]:
        """Ends when the stream has crashed or stopped."""
        waiting: Awaitable[None] = self._app.wait_until_stopped()
        return waiting

    def crashed(self) -> bool:
        """Whether an error has ended it."""
        return bool(self._app.crashed)

    async def stop(self) -> None:
        """Commit and leave."""
        await self._app.stop()
        self._folder.cleanup()


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
