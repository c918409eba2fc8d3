"""Publishes how this process is to gangline.vitals: every ten seconds, and when it stops.

The gateway answers `GET /v1/health` from these records, so that it needs no address of a service.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from gangline_bus.codec import encode
from gangline_bus.ports import Bus, BusError, TopicPartition
from gangline_bus.snapshot import SnapshotHeader
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.parts import (
    MOST_CHECKS,
    MOST_PLACES,
    MOST_SHARDS,
    PartVitals,
    SnapshotWritten,
    UnreadRecords,
    VitalCheck,
    vitals_key,
)
from gangline_schemas.features import RELEASE

from .health import Health
from .redaction import redact_text

log = structlog.get_logger(__name__)

EVERY_S = 10.0
_NOTED_S = 2.0
_STOP_S = 2.0


@dataclass
class Vitals:
    """Notes of this process about itself; every method may be called from any thread."""

    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unread: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    _noted_s: dict[str, float] = field(default_factory=dict)
    _snapshots: dict[int, SnapshotWritten] = field(default_factory=dict)

    def reads(self, reader: str, behind: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Note what a reader has still to read. `behind` is called every two seconds at most."""
        now_s = time.monotonic()
        if now_s - self._noted_s.get(reader, -_NOTED_S) < _NOTED_S:
            return
        found = dict(behind())
        with self._lock:
            self._noted_s[reader], self._unread[reader] = now_s, found

    def wrote(self, header: SnapshotHeader) -> None:
        """Note a snapshot that was written."""
        note = SnapshotWritten(shard=header.shard, seq=header.next_seq, written_at=self.clock())
        with self._lock:
            self._snapshots[header.shard] = note

    def event(
        self,
        part: str,
        instance: str,
        health: Health,
        started_at: datetime,
        names: TopicNames,
        *,
        stopping: bool = False,
    ) -> PartVitals:
        """How the process is now; texts of checks are redacted."""
        with self._lock:
            places = sorted(
                (place, records) for of in self._unread.values() for place, records in of.items()
            )
            snapshots = tuple(self._snapshots[shard] for shard in sorted(self._snapshots))
        return PartVitals(
            part=part,
            instance=instance,
            release=RELEASE,
            started_at=started_at,
            ready=health.ready(),
            stopping=stopping,
            beat_age_s=round(health.beat_age_s(), 3),
            stalled=not health.alive(),
            checks=tuple(
                VitalCheck(name=check.name, ok=check.ok, detail=redact_text(check.detail))
                for check in health.checks()[:MOST_CHECKS]
            ),
            unread=tuple(
                UnreadRecords(
                    topic=place.topic.removeprefix(names.prefix),
                    partition=place.partition,
                    records=records,
                )
                for place, records in places[:MOST_PLACES]
            ),
            snapshots=snapshots[:MOST_SHARDS],
        )


def publish_vitals(
    bus: Bus,
    names: TopicNames,
    part: str,
    instance: str,
    health: Health,
    vitals: Vitals,
    stopping: threading.Event,
) -> threading.Thread:
    """Publishes from the returned thread until `stopping`; also while the bus is away."""
    started_at = vitals.clock()

    def write(*, last: bool) -> None:
        event = vitals.event(part, instance, health, started_at, names, stopping=last)
        at = vitals.clock()
        envelope = Envelope(
            id=derived_id("vitals", part, instance, at.isoformat()),
            source=f"/gangline/{part}/{instance}",
            time=at,
            subject=part,
            data=event,
        )
        topic = names.name(Topic.VITALS)
        writer.send(encode(envelope, topic=topic, key=vitals_key(part, instance)))

    def keep() -> None:
        while True:
            last = stopping.is_set()
            try:
                write(last=last)
            except BusError as error:
                log.warning("vitals are not published", error=str(error))
            if last:
                break
            stopping.wait(EVERY_S)
        writer.flush(_STOP_S)
        writer.close()

    writer = bus.writer(prompt=True)
    thread = threading.Thread(target=keep, name="vitals", daemon=True)
    thread.start()
    return thread
