"""Every JSON body of the REST API at its least and most, through its route.

The bodies and their fields come from the OpenAPI document, so a new one is tried without a line
here. The services behind the gateway have ended: a route publishes its request, and answers that
it is undecided.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

import httpx
import pytest

from gangline_bus.codec import decode
from gangline_gateway.problems import MAX_ERRORS
from gangline_schemas.catalog import Topic
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_schemas.study_file import StudySpec
from support.builders.gateway import GatewayHarness, bearer, job, served
from support.builders.rest_document import request_bodies

from .story import FILES, SPECS
from .test_extremes import SEED, SOAK
from .values import example, fields, present_value, raw_values, with_value

FEW = 40
"""Without a soak: so many bodies of a route."""
ADMIN = bearer("admin")
ASKED = (Topic.REQUESTS, Topic.ADMIN, Topic.AUTOMATION)
DIGEST = "0" * 64
GATE = {
    "team": "nlp", "model": "lm", "aliases": ["champion"], "baseline": "current",
    "first": "accept", "checkpoint": "any", "suites": {"qa": {"rule": "better", "min_items": 10}},
    "confidence": 0.9, "training_data": {"max_age_days": 30},
}  # fmt: skip
SKETCH = {"mean": 1.0, "std": 0.5, "quantiles": [0.0, 1.0]}
COLUMNS = [
    {"kind": "category", "name": "c", "counts": {"de": 1}, "distinct": 1},
    {"kind": "number", "name": "n", "sketch": SKETCH},
]
SNAPSHOT = f"tickets@sha256-{DIGEST}"
JOBS = tuple({**spec, "team": "nlp"} for spec in SPECS)
FORMS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "POST /v1/training-jobs": JOBS,
    "POST /training-runs": JOBS,
    "POST /v1/what-if": JOBS,
    "POST /v1/studies": tuple({**one, "team": "nlp"} for one in FILES[StudySpec]),
    "POST /hpo/studies": tuple({**one, "team": "nlp"} for one in FILES[StudySpec]),
    "PUT /v1/pipelines/{name}": tuple({**one, "team": "nlp"} for one in FILES[PipelineSpec]),
    "PUT /v1/models/{model}/gate": (GATE,),
    "POST /v1/models/{model}/versions": ({"version": 3},),
    "POST /v1/profiles": (
        {
            "snapshot": SNAPSHOT,
            "made_at": "2026-01-01T00:00:00Z",
            "profile": {"rows": 1, "columns": COLUMNS},
        },
    ),
    "POST /v1/data/snapshots": ({"team": "nlp", "snapshot": SNAPSHOT},),
    "POST /v1/data-approvals": (
        {"project": "assistants", "snapshot": SNAPSHOT, "purpose": "tests"},
    ),
    "POST /v1/models/{model}/versions/{version}/evaluations": (
        {"suite": "qa", "scores": {"q1": 1.0}, "details": {"dtype": "bf16"}},
    ),
    "POST /v1/runs/{run_id}/tags": ({"tags": {"sweep": "a"}},),
}
"""What an example from the schema alone would not say."""


class Gateway:
    """A gateway with something of each kind, and no services behind it."""

    def __init__(self, scene: GatewayHarness, client: httpx.Client) -> None:
        self.scene, self.client = scene, client
        scene.configure("nlp", 64)
        scene.join("node-0", gpus=4)
        made = self._made("POST", "/v1/training-jobs", job())
        self._made("PUT", "/v1/models/lm/gate", GATE)
        for version in (1, 2):
            self._made("POST", "/v1/models/lm/versions?team=nlp", {"version": version})
            moved = {"version": version, "override": {"person": "ada", "reason": "first"}}
            self._made("POST", "/v1/models/lm/aliases/champion/promotions?team=nlp", moved)
        self.names = {
            "job_id": made["job_id"], "run_id": made["job_id"], "node_id": "node-0", "step": 1,
            "team": "nlp", "name": "x", "model": "lm", "version": 1, "alias": "champion",
        }  # fmt: skip
        scene.end_deciders()
        object.__setattr__(scene.context, "answer_wait_s", 0.0)
        token = self._made("POST", "/v1/node-tokens", {"nodes": 10_000})["token"]
        self._node = {"Authorization": f"Bearer {token}"}

    def answer(self, route: str, body: str) -> httpx.Response:
        method, path = route.split()
        return self.client.request(
            method,
            path.format(**self.names),
            params={"team": "nlp"},
            headers={
                **(self._node if path == "/v1/nodes/join" else ADMIN),
                "Content-Type": "application/json",
            },
            content=body.encode("utf-8", "surrogatepass"),
        )

    def _made(self, method: str, path: str, body: object) -> Any:
        answer = self.client.request(method, path, json=body, headers=ADMIN)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "nodes.toml").write_text('bootstrap_servers = "kafka:9093"\n')
    scene = GatewayHarness(folder)
    with served(scene) as client, pytest.MonkeyPatch.context() as patch:
        found = Gateway(scene, client)
        patch.setattr("gangline_gateway.routes.models._REGISTER_WAIT_S", 0.0)
        yield found


@cache
def bodies(route: str) -> tuple[str, ...]:
    """All bodies of a route that are tried, each once; first those that must be let in."""
    schema = request_bodies()[route]
    forms = FORMS.get(route) or (json.loads(example(schema, schema)),)
    found = dict.fromkeys(map(json.dumps, forms))
    for data in forms:
        for place in fields(schema, data):
            for raw in raw_values(schema, place, present_value(data, place.path)):
                found.setdefault(with_value(schema, data, place, raw))
    return tuple(found)


def is_let_in(answer: httpx.Response) -> bool:
    """Done, refused for what is there, or left to a service that has ended."""
    return answer.is_success or answer.status_code in {404, 409} or _is_undecided(answer)


def _is_undecided(answer: httpx.Response) -> bool:
    return answer.status_code == 503 and answer.json()["type"].endswith(":undecided")


@pytest.mark.parametrize("route", sorted(request_bodies()))
def test_what_a_body_may_say_its_route_can_bear(gateway: Gateway, route: str) -> None:
    forms = len(FORMS.get(route, ())) or 1
    first, others = bodies(route)[:forms], list(bodies(route)[forms:])
    if not SOAK:
        others = Random(f"{SEED}/{route}").sample(others, min(FEW, len(others)))
    wrong = []
    for number, body in enumerate((*first, *others)):
        answer = gateway.answer(route, body)
        if number < forms and not is_let_in(answer):
            wrong.append(f"give it a form that is let in: {answer.text[:500]}")
        if answer.status_code >= 500 and not _is_undecided(answer):
            wrong.append(f"{answer.status_code} {answer.text[:300]}\n    {body[:1000]}")
        if answer.status_code == 422 and len(answer.json()["errors"]) > MAX_ERRORS:
            wrong.append(f"{len(answer.json()['errors'])} errors of {body[:1000]}")
    assert not wrong, "\n".join(wrong[:10])


def test_what_was_asked_for_is_an_event_that_others_read(gateway: Gateway) -> None:
    broker, names = gateway.scene.broker, gateway.scene.names
    asked = [record for topic in ASKED for record in broker.dump(names.name(topic))]
    for record in asked:
        decode(record)
    assert len(asked) > len(request_bodies())
