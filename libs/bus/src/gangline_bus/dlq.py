"""The dead letter queue: refused messages with their reason, and a limit after which we stop."""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

from gangline_bus.codec import UndecodableError
from gangline_bus.ports import BusError, OutRecord, Record

_KEPT_HEADER_BYTES = 1024


class DlqLimitReached(BusError):
    """Too many messages were refused lately: something is wrong that a DLQ does not mend."""


def refused_record(record: Record, error: UndecodableError, *, dlq: str) -> OutRecord:
    """The record to put into `dlq`: the message as it was, and why and where it was refused.

    Headers above 1 KiB are left out. The reason never holds a value of the message.
    """
    kept = tuple(
        (name, value)
        for name, value in record.headers
        if value is not None and len(value) <= _KEPT_HEADER_BYTES
    )
    added = (
        ("gangline_dlq_error", error.reason.encode()[:_KEPT_HEADER_BYTES]),
        ("gangline_dlq_topic", record.topic.encode()),
        ("gangline_dlq_partition", str(record.partition).encode()),
        ("gangline_dlq_offset", str(record.offset).encode()),
    )
    return OutRecord(dlq, record.key, record.value, kept + added)


class DlqLimit:
    """At most `limit` refused messages within `window`; the next one raises DlqLimitReached."""

    def __init__(self, limit: int = 10_000, window: timedelta = timedelta(hours=1)) -> None:
        self._limit = limit
        self._window = window
        self._times: deque[datetime] = deque()

    def count(self, now: datetime) -> None:
        """Count one more."""
        while self._times and now - self._times[0] > self._window:
            self._times.popleft()
        self._times.append(now)
        if len(self._times) > self._limit:
            raise DlqLimitReached(
                f"{len(self._times)} messages were refused within {self._window}; "
                "look at the DLQ before starting again"
            )
