"""How the platform's processes are, from what they report and from their silence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from gangline_gateway.app_context import AppContext
from gangline_gateway.processes import EXPECTED, FORGOTTEN_AFTER, SILENT_AFTER, Processes
from gangline_gateway.routes.health import get_health
from gangline_schemas.events.parts import PartVitals, UnreadRecords, VitalCheck
from gangline_service.tokens import Principal, Role

NOW = datetime(2026, 11, 21, 10, tzinfo=UTC)


def vitals(part: str = "quota", instance: str = "q-0", **fields: Any) -> PartVitals:
    given = {"release": "0.1.0", "started_at": NOW, "ready": True, "beat_age_s": 0.1, **fields}
    return PartVitals(part=part, instance=instance, **given)


def states(known: Processes, now: datetime = NOW) -> dict[tuple[str, str], str]:
    return {(row.service, row.instance): row.state for row in known.rows(now, whole=True)}


def test_a_process_is_ready_until_it_is_silent() -> None:
    known = Processes()
    known.take(vitals(), NOW)
    known.take(vitals(instance="q-1", ready=False), NOW)
    known.take(vitals(instance="q-2", stalled=True), NOW)
    found = states(known, NOW + SILENT_AFTER)
    assert found["quota", "q-0"] == "ready"
    assert found["quota", "q-1"] == "not_ready"
    assert found["quota", "q-2"] == "stalled"
    later = states(known, NOW + SILENT_AFTER + timedelta(seconds=1))
    assert later["quota", "q-0"] == "silent"


def test_services_that_never_reported_are_absent() -> None:
    known = Processes()
    known.take(vitals(), NOW)
    found = states(known)
    assert {name for (name, _), state in found.items() if state == "absent"} == {
        *EXPECTED
    } - {"quota"}  # fmt: skip
    assert "scheduler" in EXPECTED


def test_a_process_that_stops_or_was_replaced_is_left_out() -> None:
    known = Processes()
    known.take(vitals(instance="old"), NOW)
    later = NOW + FORGOTTEN_AFTER + timedelta(seconds=1)
    assert states(known, later)["quota", "old"] == "silent"
    known.take(vitals(instance="new"), later)
    assert ("quota", "old") not in states(known, later)
    known.take(vitals(instance="new", stopping=True), later)
    assert states(known, later)["quota", "old"] == "silent"


def test_processes_of_an_earlier_day_are_forgotten() -> None:
    known = Processes()
    for count in range(9):
        known.take(vitals(instance=f"q-{count}"), NOW + count * timedelta(hours=6))
    now = NOW + timedelta(hours=48)
    assert len(known._known) == 4
    assert states(known, now + timedelta(hours=23))["quota", "q-8"] == "silent"
    assert states(known, now + timedelta(hours=24))["quota", ""] == "absent"


def test_members_see_neither_checks_nor_partitions() -> None:
    known = Processes()
    check = VitalCheck(name="bus", ok=True, detail="kafka-7.example:9092")
    unread = UnreadRecords(topic="gangline.requests", partition=0, records=4)
    known.take(vitals(checks=(check,), unread=(unread, unread)), NOW)
    whole = known.rows(NOW, whole=True)
    row = next(row for row in whole if row.instance)
    assert (row.unread_records, len(row.unread), row.checks[0].detail) == (8, 2, check.detail)
    reduced = next(row for row in known.rows(NOW, whole=False) if row.instance)
    assert (reduced.unread_records, reduced.unread, reduced.checks) == (8, [], [])


def test_health_is_known_while_kafka_is_away() -> None:
    known = Processes()
    known.take(vitals(), NOW)
    tail: Any = SimpleNamespace(processes=known)
    app = AppContext(*[tail] * 8, clock=lambda: NOW)  # it has no bus
    found = get_health(app, Principal(name="root", role=Role.ADMIN, teams=frozenset()))
    assert found.dead_letters is None
    assert "ready" in {row.state for row in found.services}
