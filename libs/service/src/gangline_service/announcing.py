"""Announces the release of this process: at its start, each hour, and when it stops.

The scheduler enables a feature when all processes announced a release that knows it
(docs/guides/upgrades.md).
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import structlog

from gangline_bus.codec import encode
from gangline_bus.one_record import write_one
from gangline_bus.ports import Bus, BusError, OutRecord
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.parts import PartAnnounced
from gangline_schemas.features import RELEASE

log = structlog.get_logger(__name__)

AGAIN_S = 3600.0
RETRY_S = 60.0
_START_S = 30.0
_WRITE_S = 10.0
_STOP_S = 2.0


def announcement(
    names: TopicNames, part: str, instance: str, release: str | None, at: datetime
) -> OutRecord:
    """The record that says what the process runs; None: that it stops."""
    event = PartAnnounced(part=part, instance=instance, release=release)
    envelope = Envelope(
        id=derived_id(part, instance, release or "", at.isoformat()),
        source=f"/gangline/{part}/{instance}",
        time=at,
        subject=part,
        data=event,
    )
    return encode(envelope, topic=names.name(Topic.PARTS))


def announce(
    bus: Bus, names: TopicNames, part: str, instance: str, stopping: threading.Event
) -> threading.Thread:
    """Announce the release now, and from the returned thread until `stopping`. Raises BusError.

    That the process stops is said if there is time: else the scheduler forgets it hours later.
    """

    def write(release: str | None, timeout_s: float) -> None:
        record = announcement(names, part, instance, release, datetime.now(UTC))
        write_one(bus, record, timeout_s)

    def keep() -> None:
        wait_s = AGAIN_S
        while not stopping.wait(wait_s):
            wait_s = AGAIN_S if tried(RELEASE, _WRITE_S) else RETRY_S
        tried(None, _STOP_S)

    def tried(release: str | None, timeout_s: float) -> bool:
        try:
            write(release, timeout_s)
        except BusError as error:
            log.warning("part.not_announced", release=release, error=str(error))
            return False
        return True

    write(RELEASE, _START_S)
    thread = threading.Thread(target=keep, name="announce", daemon=True)
    thread.start()
    return thread
