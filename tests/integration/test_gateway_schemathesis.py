"""What the OpenAPI document says is what the gateway does, for generated requests too.

No request may lead to a server error, every answer must be one that the document names, and its
body must have the documented shape. Event streams never end by themselves, so `follow` stays
off here; test_gateway_streams.py follows them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.schemas import OpenApiSchema

from support.builders.gateway import GatewayHarness, bearer, job, served
from support.builders.rest_document import rest_document

load_all_checks()
WANTED = [
    check
    for check in CHECKS.get_all()
    if check.__name__
    in {
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
    }
]
REFUSES = "negative_data_rejection"
DOORS = {"host", "origin", "authorization", "transfer-encoding", "content-length"}
EXAMPLES = int(os.environ.get("GANGLINE_DOCUMENT_EXAMPLES", "3"))
"""Requests of each kind to each route; `make fuzz` makes more."""
ADMIN = bearer("admin")
REAL = {"team": "nlp"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    harness = GatewayHarness(folder)
    with served(harness) as client:
        harness.configure("nlp", 8)
        harness.join("node-0", gpus=1)
        made = client.post("/v1/training-jobs", json=job(gpus=8), headers=ADMIN)
        job_id = made.json()["job_id"]
        REAL.update({"job_id": job_id, "run_id": job_id, "node_id": "node-0"})
        yield client


@pytest.fixture(scope="module")
def schema(client: httpx.Client) -> OpenApiSchema:
    return schemathesis.openapi.from_dict(client.get("/v1/openapi.json", headers=ADMIN).json())


TOO_LARGE = 413


ENDLESS = ("/v1/changes", "/v1/training-jobs/{job_id}/live")
"""Routes that only stream."""


def operations() -> list[tuple[str, str]]:
    """(method, path) of every operation that takes no raw bytes and has an answer that ends."""
    paths = rest_document()["paths"]
    return [
        (method, path)
        for path, found in paths.items()
        for method in found
        if path not in {"/v1/code-bundles", *ENDLESS}
    ]


def test_there_are_checks() -> None:
    assert len(WANTED) == 5


def _wrong_body(case: schemathesis.Case) -> bool:
    """Whether the case was made with a body that the document does not allow."""
    body = case.meta.components.get(ParameterLocation.BODY) if case.meta is not None else None
    return body is not None and body.mode is GenerationMode.NEGATIVE


@pytest.mark.parametrize(("method", "path"), operations())
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_answers_are_as_documented(
    client: httpx.Client, schema: OpenApiSchema, method: str, path: str, mode: GenerationMode
) -> None:
    operation = schema[path][method.upper()]
    try:
        cases = operation.as_strategy(generation_mode=mode)
    except Exception as error:
        pytest.fail(f"no requests can be made of the document: {error}")

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, real=st.booleans())
    def check(case: schemathesis.Case, real: bool) -> None:
        if real and mode is GenerationMode.POSITIVE:
            known = {name: REAL[name] for name in (case.path_parameters or {}) if name in REAL}
            case.path_parameters = {**(case.path_parameters or {}), **known}
            if isinstance(case.body, dict) and "resources" in case.body:
                case.body = {**case.body, "team": "nlp", "resources": {"gpus": 2}}
        if case.query:
            case.query.pop("follow", None)
        for name in [name for name in (case.headers or {}) if name.lower() in DOORS]:
            del case.headers[name]
        headers = {**ADMIN, "Accept": "application/json"}
        answer = case.call(base_url=str(client.base_url), headers=headers)
        # Of a query parameter that is given twice the last one counts, and unknown ones count for
        # nothing: only what is wrong with a body must be refused (one that is too large, unread).
        refuses = method != "get" and _wrong_body(case) and answer.status_code != TOO_LARGE
        checks = [check for check in WANTED if refuses or check.__name__ != REFUSES]
        case.validate_response(answer, checks=checks)

    check()
