"""Personal access tokens and the audit log, over real HTTP."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from gangline_gateway import sse
from gangline_schemas.catalog import Topic
from gangline_service.private_file import write_private
from gangline_service.tokens import Role, TokenEntry, TokenFile, write_tokens
from support.builders.gateway import TOKENS, GatewayHarness, job
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

__all__ = ["harness", "http_client"]


def make(client: httpx.Client, headers: dict[str, str] = NLP, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/tokens", json={"name": "nightly", **body}, headers=headers)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def by(token: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {token['token']}"}


def records(harness: GatewayHarness) -> list[dict[str, Any]]:
    """The audit log."""
    return [json.loads(one.value) for one in harness.broker.dump(harness.names.name(Topic.AUDIT))]


def audited(
    harness: GatewayHarness, action: str, target: str = "", **fields: object
) -> dict[str, Any]:
    """The newest record of an action with these fields. It comes after the answer."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = [
            one
            for one in records(harness)
            if (one["action"], target in one["target"]) == (action, True)
            and fields.items() <= one.items()
        ]
        return bool(found)

    harness.wait(look)
    return found[-1]


def test_a_token_does_what_its_scope_is(harness: GatewayHarness, http_client: httpx.Client) -> None:
    reads, submits = make(http_client), make(http_client, scope="submit", teams=["nlp"])
    job_id = submit(http_client)
    assert http_client.get(f"/v1/training-jobs/{job_id}", headers=by(reads)).status_code == 200
    refused = http_client.post("/v1/training-jobs", json=job(), headers=by(reads))
    assert "this needs submit" in problem(refused, 403, "forbidden")["detail"]
    done = http_client.post("/v1/training-jobs", json=job(), headers=by(submits))
    assert (done.status_code, done.json()["user"]) == (201, "ada")
    who = http_client.get("/v1/whoami", headers=by(submits)).json()
    assert who == {
        "name": "ada", "role": "member", "teams": ["nlp"], "scope": "submit", "via": "access-token",
    }  # fmt: skip
    other = http_client.post("/v1/training-jobs", json=job("vision"), headers=by(submits))
    assert other.status_code == 403
    record = audited(harness, "job.submit", done.json()["job_id"])
    assert record == {
        "user": "ada", "role": "member", "via": "access-token", "token": submits["token_id"],
        "action": "job.submit", "team": "nlp", "target": done.json()["job_id"], "outcome": "done",
        "status": 201, "address": "127.0.0.1", "trace": done.headers["x-trace-id"],
    }  # fmt: skip


def test_a_token_makes_and_ends_no_others(http_client: httpx.Client) -> None:
    full, other = make(http_client, scope="admin"), make(http_client)
    refused = http_client.post("/v1/tokens", json={"name": "more"}, headers=by(full))
    assert "makes no others" in problem(refused, 403, "forbidden")["detail"]
    reads = make(http_client)
    path = f"/v1/tokens/{other['token_id']}"
    assert http_client.delete(path, headers=by(reads)).status_code == 404
    assert http_client.delete(path, headers=VISION).status_code == 404
    own = f"/v1/tokens/{reads['token_id']}"
    assert http_client.delete(own, headers=by(reads)).status_code == 204
    assert http_client.get("/v1/whoami", headers=by(reads)).status_code == 401
    assert http_client.delete(path, headers=ADMIN).status_code == 204


def test_tokens_are_listed_to_their_owner_and_to_admins(http_client: httpx.Client) -> None:
    mine = make(http_client, VISION, name="ci", days=7)
    shown = http_client.get("/v1/tokens", headers=VISION).json()["tokens"]
    assert [(one["token_id"], one["state"], one["teams"]) for one in shown] == [
        (mine["token_id"], "active", ["vision"])
    ]
    assert "token" not in shown[0]
    assert http_client.get("/v1/tokens?user=bob", headers=NLP).status_code == 403
    of_bob = http_client.get("/v1/tokens?user=bob", headers=ADMIN).json()["tokens"]
    assert of_bob == shown
    every = http_client.get("/v1/tokens?of=all", headers=ADMIN).json()["tokens"]
    assert {one["owner"] for one in every} >= {"ada", "bob"}


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (NLP, {"name": ""}, 422),
        (NLP, {"name": "a", "days": 366}, 422),
        (NLP, {"name": "a", "scope": "root"}, 422),
        (NLP, {"name": "a", "teams": ["vision"]}, 403),
        (SERVICE, {"name": "a"}, 403),
    ],
)
def test_a_token_that_may_not_be_is_refused(
    http_client: httpx.Client, headers: dict[str, str], body: dict[str, Any], status: int
) -> None:
    assert http_client.post("/v1/tokens", json=body, headers=headers).status_code == status


def test_the_stream_of_a_revoked_token_ends(
    harness: GatewayHarness, http_client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "CHECK_S", 0.0)
    monkeypatch.setattr(harness.context.followers, "heartbeat_s", 0.05)
    token = make(http_client)
    path = f"/v1/training-jobs/{submit(http_client, gpus=8)}/events?follow=true"
    with http_client.stream("GET", path, headers=by(token)) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": stream"
        gone = http_client.delete(f"/v1/tokens/{token['token_id']}", headers=NLP)
        assert gone.status_code == 204
        assert "event: end" not in list(lines), "it ends before its job"


def test_an_expired_token_and_one_of_an_owner_without_rights_are_refused(
    harness: GatewayHarness, http_client: httpx.Client
) -> None:
    entries = [
        TokenEntry.of(TOKENS["admin"], name="root", role=Role.ADMIN),
        TokenEntry.of(TOKENS["nlp"], name="ada", role=Role.MEMBER, teams=["nlp"]),
        TokenEntry.of(TOKENS["vision"], name="bob", role=Role.MEMBER, teams=["vision"]),
        TokenEntry.of(TOKENS["svc"], name="svc", role=Role.SERVICE),
    ]
    extra = TokenEntry.of("gl_of-eve", name="eve", role=Role.MEMBER, teams=["nlp"])
    write_tokens(harness.tokens_file, [*entries, extra])
    token = make(http_client, {"Authorization": "Bearer gl_of-eve"})
    assert http_client.get("/v1/whoami", headers=by(token)).status_code == 200
    write_tokens(harness.tokens_file, entries)
    assert http_client.get("/v1/whoami", headers=by(token)).status_code == 401
    known = harness.tail.access_tokens
    mine = make(http_client)
    held = known.get(mine["token_id"])
    assert held is not None
    known.take(held.model_copy(update={"expires_at": held.made_at + timedelta(microseconds=1)}))
    assert http_client.get("/v1/whoami", headers=by(mine)).status_code == 401
    states = http_client.get("/v1/tokens", headers=NLP).json()["tokens"]
    assert states[0]["state"] == "expired"


def test_a_token_of_an_admin_shows_that_it_is_for_all_teams(
    harness: GatewayHarness, http_client: httpx.Client
) -> None:
    before = harness.tokens_file.read_bytes()
    boss = TokenEntry.of("gl_of-boss", name="boss", role=Role.ADMIN, teams=["nlp"])
    write_tokens(harness.tokens_file, [*TokenFile.decode(before).tokens, boss])
    headers = {"Authorization": "Bearer gl_of-boss"}
    assert make(http_client, headers)["teams"] == []
    assert make(http_client, headers, teams=["vision"])["teams"] == ["vision"]
    assert make(http_client, NLP)["teams"] == ["nlp"]
    write_private(harness.tokens_file, before)


def test_changes_sign_ins_and_refusals_are_recorded(
    harness: GatewayHarness, http_client: httpx.Client
) -> None:
    job_id = submit(http_client, gpus=8)
    http_client.post(f"/v1/training-jobs/{job_id}/cancel", headers=NLP)
    record = audited(harness, "job.cancel", job_id)
    assert (record["user"], record["team"], record["outcome"]) == ("ada", "nlp", "done")
    http_client.post("/v1/nodes/n-9/drain", json={}, headers=NLP)
    assert audited(harness, "node.drain", user="ada", outcome="refused")["target"] == "n-9"
    http_client.put("/v1/teams/audio", json={"gpu_limit": 4}, headers=ADMIN)
    assert audited(harness, "team.set", "audio")["team"] == "audio"
    http_client.get("/v1/events", headers=NLP)
    record = audited(harness, "access", "GET /v1/events")
    assert (record["user"], record["status"]) == ("ada", 403)
    http_client.get("/v1/whoami", headers={"Authorization": "Bearer gl_guessed"})
    assert audited(harness, "access", status=401)["user"] == ""
    guessed = {"Authorization": "Bearer gl_node_guessed"}
    node = http_client.post("/v1/nodes/join", json={"node_id": "n-9"}, headers=guessed)
    assert audited(harness, "access", status=401, trace=node.headers["x-trace-id"])
    ours = {"Origin": str(http_client.base_url).rstrip("/")}
    http_client.post("/session", data={"token": TOKENS["vision"]}, headers=ours)
    assert audited(harness, "session.begin", user="bob")["outcome"] == "done"
    http_client.post("/session/end", headers=ours)
    assert audited(harness, "session.end", user="bob")
    http_client.cookies.clear()
    token = make(http_client)
    http_client.delete(f"/v1/tokens/{token['token_id']}", headers=NLP)
    assert audited(harness, "token.create")["target"]
    assert audited(harness, "token.revoke", token["token_id"])["user"] == "ada"


def test_a_dry_run_is_not_recorded_and_nothing_secret_is(
    harness: GatewayHarness, http_client: httpx.Client
) -> None:
    dry = http_client.post("/v1/training-jobs?dry_run=true", json=job(), headers=NLP)
    assert dry.status_code == 200
    token = make(http_client)
    assert audited(harness, "token.create", token["token_id"])
    whole = json.dumps(records(harness))
    assert dry.headers["x-trace-id"] not in whole
    assert not [text for text in (token["token"], *TOKENS.values()) if text in whole]


def test_one_user_fills_the_log_with_refusals_only_to_a_limit(
    harness: GatewayHarness, http_client: httpx.Client
) -> None:
    for _ in range(60):
        http_client.get("/v1/dead-letters", headers=VISION)
    http_client.put("/v1/teams/vision", json={"gpu_limit": 8}, headers=ADMIN)
    audited(harness, "team.set", "vision")
    refused = [
        one for one in records(harness) if one["user"] == "bob" and one["outcome"] == "refused"
    ]
    assert 10 < len(refused) < 50
