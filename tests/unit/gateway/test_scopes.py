"""Each route of the OpenAPI document has a scope, and refuses tokens whose scope is smaller."""

from __future__ import annotations

import asyncio
import re
from functools import cache

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from gangline_gateway.app import over
from gangline_gateway.mlflow_routes import check_scope
from gangline_gateway.problems import ProblemError
from gangline_gateway.route_rules import _RULES, known, rule_of
from gangline_schemas.access import TokenScope
from gangline_service.tokens import Principal, Role
from support.builders.rest_document import rest_document


@cache
def routes() -> list[tuple[str, str]]:
    return sorted(
        (method.upper(), path)
        for path, operations in rest_document()["paths"].items()
        for method in operations
    )


@cache
def too_small() -> list[tuple[str, str, TokenScope]]:
    return [
        (method, path, scope)
        for method, path in routes()
        for scope in TokenScope
        if not scope.includes(rule_of(method, path).scope)
    ]


def admin(scope: TokenScope) -> Principal:
    return Principal(name="root", role=Role.ADMIN, teams=frozenset(), scope=scope)


def test_each_route_has_a_rule_and_each_rule_a_route() -> None:
    assert [route for route in routes() if not known(*route)] == []
    assert set(_RULES) <= {" ".join(route) for route in routes()}


def test_each_change_has_a_word_in_the_audit_log() -> None:
    silent = [route for route in routes() if route[0] != "GET" and rule_of(*route).action is None]
    assert silent == [("POST", "/v1/what-if")]


def test_a_scope_includes_those_before_it() -> None:
    found = [[one.includes(other) for other in TokenScope] for one in TokenScope]
    assert found == [[True, False, False], [True, True, False], [True, True, True]]
    assert {scope for _, _, scope in too_small()} == {TokenScope.READ, TokenScope.SUBMIT}


def test_each_route_refuses_tokens_of_a_smaller_scope() -> None:
    app = over(None)  # type: ignore[arg-type] # a refused request reaches no part of it
    answers: dict[tuple[str, str, TokenScope], httpx.Response] = {}

    async def ask_all() -> None:
        for method, path, scope in too_small():

            async def as_caller(
                asked: Scope, receive: Receive, send: Send, scope: TokenScope = scope
            ) -> None:
                asked.setdefault("state", {})["principal"] = admin(scope)
                await app(asked, receive, send)

            transport = httpx.ASGITransport(as_caller)
            async with httpx.AsyncClient(transport=transport, base_url="http://g") as client:
                place = re.sub(r"\{\w+\}", "1", path)
                answers[method, path, scope] = await client.request(method, place)

    asyncio.run(ask_all())
    assert len(answers) > 40
    for (method, path, scope), answer in answers.items():
        assert answer.status_code == 403, (method, path, answer.text)
        needed = rule_of(method, path).scope
        assert f"has the scope {scope}; this needs {needed}" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/mlflow/api/2.0/mlflow/runs/get", True),
        ("POST", "/mlflow/teams/nlp/api/2.0/mlflow/runs/search", True),
        ("POST", "/mlflow/api/2.0/mlflow/runs/log-metric", False),
        ("POST", "/mlflow/api/2.0/mlflow/runs/delete", False),
        ("POST", "/mlflow/ajax-api/2.0/mlflow/runs/search", True),
        ("PUT", "/mlflow/api/2.0/mlflow-artifacts/artifacts/search", False),
        ("PUT", "/mlflow/api/2.0/mlflow-artifacts/artifacts/1/api/2.0/mlflow/runs/search", False),
        ("DELETE", "/mlflow/api/2.0/mlflow/label-schemas/search", False),
        ("POST", "/mlflow/graphql", False),
    ],
)
def test_a_token_for_reading_changes_nothing_in_mlflow(
    method: str, path: str, allowed: bool
) -> None:
    check_scope(admin(TokenScope.SUBMIT), method, path)
    if allowed:
        check_scope(admin(TokenScope.READ), method, path)
        return
    with pytest.raises(ProblemError, match="this needs submit"):
        check_scope(admin(TokenScope.READ), method, path)
