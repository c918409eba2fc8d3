"""Routes of alerts, silences and notifications: what each token sees and may do."""

from __future__ import annotations

from typing import Any

import httpx

from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import (
    ADMIN,
    NLP,
    SERVICE,
    VISION,
    harness,
    http_client,
    problem,
    submit,
)

__all__ = ["harness", "http_client"]  # fixtures are used by being in this module


def alerts(client: httpx.Client, who: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/alerts?all=true", headers=who).json()["alerts"]
    return found


def waiting(client: httpx.Client, harness: GatewayHarness) -> tuple[str, int]:
    """A job that waits too long, and its alert's number."""
    job_id = submit(client, NLP, priority=10)

    def raised() -> list[int]:
        return [one["number"] for one in alerts(client, NLP) if one["subject"] == job_id]

    harness.wait(raised)
    (number,) = raised()
    return job_id, number


def test_teams_see_their_own_alerts_and_notifications(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:  # fmt: skip
    job_id, _ = waiting(http_client, harness)
    assert job_id in {one["subject"] for one in alerts(http_client, ADMIN)}
    assert job_id not in {one["subject"] for one in alerts(http_client, VISION)}

    def sent(who: dict[str, str]) -> set[str]:
        found = http_client.get("/v1/notifications", headers=who).json()["notifications"]
        return {one["team"] for one in found}

    harness.wait(lambda: "nlp" in sent(ADMIN))
    assert sent(NLP) == {"nlp"}
    assert sent(VISION) == set()


def test_a_team_silences_its_own_alerts_alone(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:  # fmt: skip
    job_id, number = waiting(http_client, harness)
    made = http_client.post("/v1/silences", json={"alert": number, "hours": 1}, headers=NLP)
    assert made.status_code == 201, made.text
    silence = made.json()
    assert (silence["rule"], silence["team"], silence["subject"], silence["user"]) == (
        "queue-wait", "nlp", job_id, "ada",
    )  # fmt: skip
    path = f"/v1/silences/{silence['number']}/end"
    listed = http_client.get("/v1/silences", headers=NLP).json()["silences"]
    assert silence["number"] in {one["number"] for one in listed}
    assert http_client.get("/v1/silences", headers=VISION).json()["silences"] == []
    problem(http_client.post("/v1/silences", json={"alert": number}, headers=VISION), 404,
            "not-found")  # fmt: skip
    problem(http_client.post("/v1/silences", json={"team": "nlp"}, headers=VISION), 403,
            "forbidden")  # fmt: skip
    problem(http_client.post("/v1/silences", json={}, headers=NLP), 403, "forbidden")
    problem(http_client.post("/v1/silences", json={"team": "nlp"}, headers=SERVICE), 403,
            "forbidden")  # fmt: skip
    problem(http_client.post(path, headers=VISION), 404, "not-found")
    assert http_client.post(path, headers=NLP).status_code == 200
    problem(http_client.post(path, headers=NLP), 404, "not-found")


def test_an_admin_silences_all(http_client: httpx.Client) -> None:
    made = http_client.post("/v1/silences", json={"rule": "low-mfu"}, headers=ADMIN)
    assert made.status_code == 201
    number = made.json()["number"]
    visible = http_client.get("/v1/silences", headers=VISION).json()["silences"]
    assert number in {one["number"] for one in visible}
    problem(http_client.post(f"/v1/silences/{number}/end", headers=VISION), 403, "forbidden")
    assert http_client.post(f"/v1/silences/{number}/end", headers=ADMIN).status_code == 200
