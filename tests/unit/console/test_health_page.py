"""Platform health: processes by state, what members do not see, and dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gangline_schemas.api.cluster import Whoami
from gangline_schemas.api.health import (
    DeadLetter,
    DeadLetterCount,
    DeadLetterPage,
    HealthCheck,
    PlatformHealth,
    ServiceProcess,
)
from support.builders.console import console

AT = datetime(2026, 11, 26, 2, tzinfo=UTC)
ADMIN = Whoami(name="root", role="admin", teams=[])


def process(service: str, state: str = "ready", **changes: Any) -> ServiceProcess:
    values: dict[str, Any] = {
        "service": service, "instance": f"{service}-0", "version": "0.1.0", "state": state,
        "started_at": AT, "reported_at": AT, "beat_age_s": 0.1, "unread_records": 0, "checks": [],
        "unread": [], "snapshots": [],
    }  # fmt: skip
    return ServiceProcess.model_validate(values | changes)


def health(*services: ServiceProcess) -> PlatformHealth:
    count = DeadLetterCount(topic="gangline.requests", records=12)
    return PlatformHealth(at=AT, ok=False, services=list(services), dead_letters=[count])


def letter(**changes: Any) -> DeadLetter:
    values: dict[str, Any] = {
        "topic": "gangline.requests", "partition": 1, "offset": 8, "dead_letter": 2,
        "refused_at": AT, "type": "job.submitted", "source": "/sdk", "subject": "llama-0a1b",
        "reason": "resources.gpus: must be at least 1", "trace": "", "size_bytes": 2_400_000,
        "message": "{}", "cut": False,
    }  # fmt: skip
    return DeadLetter.model_validate(values | changes)


def test_services_are_counted_ready_if_one_of_their_processes_is() -> None:
    check = HealthCheck(name="ingest steps", ok=False, detail="waiting for the bus")
    found = health(
        process("scheduler"),
        process("scheduler", "silent", instance="scheduler-1"),
        process("tracker", "not_ready", unread_records=48_213, checks=[check]),
    )
    client, _ = console({"GET /v1/health": found, "GET /v1/whoami": ADMIN})
    text = client.get("/console/health").text
    for shown in ("1 of 2", "1 service without a process", "48,213", "waiting for the bus", "12"):
        assert shown in text, shown
    assert "has not reported for 35 seconds" in text


def test_a_platform_whose_kafka_is_away_still_shows_its_processes() -> None:
    found = health(process("scheduler", "silent")).model_copy(update={"dead_letters": None})
    client, _ = console({"GET /v1/health": found, "GET /v1/whoami": ADMIN})
    text = client.get("/console/health").text
    assert "Kafka does not answer" in text
    assert "silent" in text


def test_members_see_neither_checks_nor_dead_letters() -> None:
    client, _ = console({"GET /v1/health": health(process("scheduler"))})
    text = client.get("/console/health").text
    assert "Checks and partitions" not in text
    assert "/console/health/dead-letters" not in text


def test_dead_letters_show_reason_and_message_as_text() -> None:
    page = DeadLetterPage(
        dead_letters=[letter(message="<script>alert(1)</script>", cut=True)], cursor="requests.2"
    )
    client, gateway = console({"GET /v1/dead-letters": page, "GET /v1/health": health()})
    text = client.get("/console/health/dead-letters?topic=requests").text
    for shown in ("must be at least 1", "partition 1, offset 8", "2.4 MB", "cut here"):
        assert shown in text, shown
    assert "<script>alert" not in text
    assert "topic=requests&amp;cursor=requests.2" in text
    asked = next(item[1] for item in gateway.asked if item[0] == "GET /v1/dead-letters")
    assert dict(asked)["topic"] == "requests"
