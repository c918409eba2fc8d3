"""How each process of the platform is, from the vitals that they publish."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta

from gangline_schemas.api.health import HealthCheck, ProcessState, ServiceProcess, Snapshot, Unread
from gangline_schemas.catalog import Topic, catalog
from gangline_schemas.events.parts import PartVitals

SILENT_AFTER = timedelta(seconds=35)
"""Three vitals were missed."""
FORGOTTEN_AFTER = timedelta(minutes=15)
"""A silent process is left out if another one of its service reports."""
KEPT_FOR = timedelta(milliseconds=catalog()[Topic.VITALS].retention_ms)
"""A gateway that starts now knows no earlier reports."""
EXPECTED = (
    *(entry.owner for entry in catalog().values() if entry.kind == "log"),
    "gateway",
    "live-view",
    "tracker",
)
"""Services that every installation runs."""


class Processes:
    """The newest vitals of each process; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[PartVitals, datetime]] = {}

    def take(self, event: PartVitals, at: datetime) -> None:
        """Newer vitals replace older ones; a process that stops is left out."""
        key = event.part, event.instance
        with self._lock:
            if event.stopping:
                self._known.pop(key, None)
                return
            if key not in self._known:
                self._forget(at)
            self._known[key] = event, at

    def rows(self, now: datetime, *, whole: bool) -> list[ServiceProcess]:
        """By service and instance; `whole`: with the checks, partitions and snapshots."""
        with self._lock:
            self._forget(now)
            known = sorted(self._known.values(), key=lambda one: (one[0].part, one[0].instance))
        heard = {event.part for event, at in known if now - at <= SILENT_AFTER}
        rows = [
            _row(event, at, now, whole=whole)
            for event, at in known
            if event.part not in heard or now - at <= FORGOTTEN_AFTER
        ]
        return sorted([*rows, *_absent(heard | {row.service for row in rows})], key=_place)

    def _forget(self, now: datetime) -> None:
        """Drop processes that ended without a word long ago: each start may have a new name."""
        self._known = {key: one for key, one in self._known.items() if now - one[1] < KEPT_FOR}


def _row(event: PartVitals, at: datetime, now: datetime, *, whole: bool) -> ServiceProcess:
    return ServiceProcess(
        service=event.part,
        instance=event.instance,
        version=event.release,
        state=_state(event, now - at),
        started_at=event.started_at,
        reported_at=at,
        beat_age_s=event.beat_age_s,
        unread_records=sum(each.records for each in event.unread),
        checks=[HealthCheck(**check.model_dump()) for check in event.checks] if whole else [],
        unread=[Unread(**each.model_dump()) for each in event.unread] if whole else [],
        snapshots=[Snapshot(**each.model_dump()) for each in event.snapshots] if whole else [],
    )


def _state(event: PartVitals, age: timedelta) -> ProcessState:
    if age > SILENT_AFTER:
        return "silent"
    if event.stalled:
        return "stalled"
    return "ready" if event.ready else "not_ready"


def _absent(known: set[str]) -> Iterator[ServiceProcess]:
    for service in EXPECTED:
        if service not in known:
            yield ServiceProcess(
                service=service,
                instance="",
                version="",
                state="absent",
                started_at=None,
                reported_at=None,
                beat_age_s=None,
                unread_records=None,
                checks=[],
                unread=[],
                snapshots=[],
            )


def _place(row: ServiceProcess) -> tuple[str, str]:
    return row.service, row.instance
