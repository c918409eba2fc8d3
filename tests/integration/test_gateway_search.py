"""Search, health and dead letters over a served gateway: what each token finds and sees."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx

from gangline_bus.ports import OutRecord
from gangline_schemas.catalog import Topic
from gangline_schemas.events.parts import PartVitals, VitalCheck
from support.builders.gateway import GatewayHarness
from support.fixtures.gateway_http import ADMIN, NLP, VISION, harness, http_client, problem, submit

__all__ = ["harness", "http_client"]  # fixtures are used by being in this module


def search(client: httpx.Client, who: dict[str, str], query: str) -> list[dict[str, Any]]:
    answer = client.get("/v1/search", params={"q": query}, headers=who)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["found"]
    return found


def places(found: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["kind"], one["id"]) for one in found}


def test_search_finds_what_the_caller_may_see(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:  # fmt: skip
    job_id = submit(http_client, NLP, name="needle")
    harness.join("needle-node")
    exact = search(http_client, NLP, job_id.upper())[0]
    assert (exact["kind"], exact["id"], exact["exact"]) == ("job", job_id, True)
    assert (exact["title"], exact["team"]) == ("needle", "nlp")
    assert {("job", job_id), ("node", "needle-node")} <= places(search(http_client, NLP, "needle"))
    assert places(search(http_client, VISION, "needle")) == {("node", "needle-node")}
    assert ("team", "nlp") in places(search(http_client, NLP, "nlp"))
    assert ("team", "nlp") not in places(search(http_client, VISION, "nlp"))
    problem(http_client.get("/v1/search?q=%20", headers=NLP), 422, "invalid")


def test_search_finds_headings_whose_pages_can_be_read(http_client: httpx.Client) -> None:
    found = [one for one in search(http_client, NLP, "silences") if one["kind"] == "doc"]
    heading = next(one for one in found if one["id"] == "guides/alerts.md#silences")
    assert heading["exact"]
    page = http_client.get("/v1/docs/guides/alerts.md", headers=NLP).json()
    assert page["title"] == "Alerts and notifications"
    assert "## Silences" in page["markdown"]
    problem(http_client.get("/v1/docs/../README.md", headers=NLP), 404, "no-such-route")
    problem(http_client.get("/v1/docs/guides%2F..%2F..%2FREADME.md", headers=NLP), 404, "not-found")


def test_health_and_dead_letters(http_client: httpx.Client, harness: GatewayHarness) -> None:
    check = VitalCheck(name="role", ok=True, detail="leads shard 0")
    now = datetime.now(UTC)
    vitals = PartVitals(
        part="quota", instance="q-0", release="0.1.0", started_at=now, ready=True,
        beat_age_s=0.1, checks=(check,),
    )  # fmt: skip
    harness.say(vitals, "quota", "quota/q-0")
    requests = harness.names.name(Topic.REQUESTS)
    harness.bus.writer().send(OutRecord(requests, b"k", b"no event"))

    def seen(who: dict[str, str]) -> dict[str, Any]:
        rows = http_client.get("/v1/health", headers=who).json()["services"]
        return {row["service"]: row for row in rows}

    harness.wait(lambda: seen(ADMIN)["quota"]["state"] == "ready")
    assert seen(ADMIN)["quota"]["checks"][0]["detail"] == "leads shard 0"
    assert seen(NLP)["quota"]["checks"] == []
    assert seen(ADMIN)["scheduler"]["state"] == "absent"

    def letters() -> list[dict[str, Any]]:
        answer = http_client.get("/v1/dead-letters?topic=requests", headers=ADMIN).json()
        found: list[dict[str, Any]] = answer["dead_letters"]
        return found

    harness.wait(letters)
    assert letters()[0]["message"] == "no event"
    assert "ce_specversion" in letters()[0]["reason"]
    problem(http_client.get("/v1/dead-letters", headers=NLP), 403, "forbidden")
    problem(http_client.get("/v1/dead-letters?topic=what", headers=ADMIN), 422, "invalid")


def test_rules_are_for_everyone(http_client: httpx.Client) -> None:
    rules = http_client.get("/v1/alert-rules", headers=NLP).json()["rules"]
    assert {"rule": "queue-wait", "team": ""}.items() <= rules[1].items()
