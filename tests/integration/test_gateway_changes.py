"""What the stream of changes and the map of GPUs tell the viewers of two teams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_gateway import changes
from support.builders.gateway import GatewayHarness, served
from support.fixtures.gateway_http import ADMIN, NLP, VISION, events, problem, step, submit

Event = tuple[str, str, Any]


@pytest.fixture
def harness(tmp_path: Path) -> GatewayHarness:
    return GatewayHarness(tmp_path)


@pytest.fixture
def http_client(harness: GatewayHarness) -> Iterator[httpx.Client]:
    with served(harness) as client:
        harness.configure("nlp", 64)
        harness.configure("vision", 8)
        yield client


@contextmanager
def follow(
    client: httpx.Client, headers: dict[str, str], *kinds: str, last_id: str = ""
) -> Iterator[Iterator[Event]]:
    more = {"Last-Event-ID": last_id} if last_id else {}
    path = "/v1/changes"
    query = {"follow": "true", "kind": list(kinds)}
    with client.stream("GET", path, params=query, headers={**headers, **more}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.iter_lines())


def until(stream: Iterator[Event], kind: str, **fields: object) -> Event:
    """The first event of this kind with these fields."""
    for event in stream:
        if event[1] == kind and fields.items() <= event[2].items():
            return event
    raise AssertionError("the stream ended")


def test_a_viewer_sees_rows_of_its_own_teams_as_the_list_has_them(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    with (
        follow(http_client, NLP, "job") as nlp,
        follow(http_client, VISION, "job") as vision,
        follow(http_client, ADMIN, "job") as admin,
    ):
        for stream in (nlp, vision, admin):
            assert next(stream)[1] == "snapshot"
        theirs = submit(http_client, VISION, team="vision", gpus=8)
        ours = submit(http_client, gpus=64)
        for stream, wanted in ((nlp, {ours}), (vision, {theirs}), (admin, {ours, theirs})):
            rows: dict[str, Any] = {}
            while rows.keys() != wanted or any(row["waiting"] is None for row in rows.values()):
                _, kind, row = next(stream)
                assert kind == "job"
                assert row["job_id"] in wanted
                rows[row["job_id"]] = row
        listed = http_client.get("/v1/training-jobs", headers=NLP).json()["jobs"]
        assert [row.keys() for row in listed] == [rows[ours].keys()]
        harness.say(step(ours, 7), ours, ours)
        assert until(nlp, "job", job_id=ours, step=7)[2]["loss"] == 1 / 8


def test_nodes_and_the_queue_are_told_to_all_and_jobs_of_others_are_not_named(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    with follow(http_client, NLP) as nlp, follow(http_client, VISION) as vision:
        harness.join("node-1", gpus=4)
        for stream in (nlp, vision):
            row = until(stream, "node", node_id="node-1")[2]
            assert (row["status"], row["gpus"], row["gangs"]) == ("ready", [0, 1, 2, 3], [])
        job_id = submit(http_client, gpus=3)
        gang = {"job_id": job_id, "team": "nlp", "gpus": [0, 1, 2], "first_rank": 0}
        hidden = {**dict.fromkeys(gang), "gpus": [0, 1, 2]}
        for stream, wanted in ((nlp, gang), (vision, hidden)):
            assert until(stream, "node", gangs=[wanted])
        submit(http_client, gpus=64)
        assert until(vision, "queue")[2] == {"pending_jobs": 1}
    packed = http_client.get("/v1/alert-rules", headers=VISION)
    plain = http_client.get("/v1/alert-rules", headers={**VISION, "Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
    found = http_client.get("/v1/gpus", headers=VISION).json()
    assert [node["gangs"] for node in found["nodes"]] == [[hidden]]
    assert (found["gpus"], found["gpus_ready"], found["gpus_used"]) == (4, 4, 3)
    assert found["largest_gangs"] == [
        {"model": "cpu", "gpus": 1, "in_one_rack": 1, "on_one_node": 1}
    ]


def test_a_viewer_continues_where_it_was_or_reads_its_lists_again(
    http_client: httpx.Client, harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT", 2)
    with follow(http_client, NLP, "job") as stream:
        next(stream)
        job_id = submit(http_client, gpus=64)
        last_id = until(stream, "job", job_id=job_id)[0]
    harness.say(step(job_id, 1), job_id, job_id)
    with follow(http_client, NLP, "job", last_id=last_id) as stream:
        assert next(stream)[1] == "job"
    for unknown in ("x", "abcd.1", last_id + "000", "1" * 4000):
        with follow(http_client, NLP, "job", last_id=unknown) as stream:
            assert next(stream)[1] == "snapshot"
    with follow(http_client, NLP, "job") as stream:
        first = next(stream)[0]
        for number in (2, 3, 4):
            harness.say(step(job_id, number), job_id, job_id)
            until(stream, "job", step=number)
    with follow(http_client, NLP, "job", last_id=first) as stream:
        assert next(stream)[1] == "snapshot"


def test_the_stream_refuses_what_it_cannot_do(http_client: httpx.Client) -> None:
    refused = http_client.get("/v1/changes", params={"follow": "false"}, headers=NLP)
    problem(refused, 422, "invalid")
    problem(http_client.get("/v1/changes", params={"kind": "x"}, headers=NLP), 422, "invalid")
    problem(http_client.get("/v1/changes"), 401, "no-token")
