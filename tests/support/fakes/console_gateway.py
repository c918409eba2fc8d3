"""The gateway as the console's pages see it: answers by method and path, and what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from gangline_console.client import ApiError, Gateway, GatewayAwayError, Query
from gangline_schemas.api.cluster import Whoami
from gangline_schemas.api.problem import Problem

TOKEN = "gl_of-a-user"
WHO = Whoami(name="ana", role="member", teams=["research"])


def problem(status: int, code: str, detail: str) -> ApiError:
    """An answer that is a problem document."""
    return ApiError(
        Problem(
            type=f"urn:gangline:problem:{code}", title=code, status=status, detail=detail,
            instance="urn:gangline:request:0",
        )
    )  # fmt: skip


@dataclass
class FakeGateway(Gateway):
    """`answers` maps `GET /v1/...` to the answer, a model, or to the error that is raised."""

    again_s: tuple[float, ...] = (0, 0)
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, Any], Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The idempotency keys of requests that had one."""

    async def send(
        self, token: str, method: str, path: str, query: Query | None, body: Any, key: str = ""
    ) -> tuple[int, str]:
        if token != TOKEN:
            raise problem(401, "no-token", "give a token of this installation")
        self.asked.append((f"{method} {path}", dict(query or {}), body))
        self.keys += [key] if key else []
        found = self.answers.get(f"{method} {path}")
        if path == "/v1/whoami" and found is None:
            found = WHO
        if found is None:
            raise problem(404, "not-found", "there is no such job, or it is not your team's")
        if isinstance(found, Exception):
            raise found
        return 200, TypeAdapter(type(found)).dump_json(found).decode()


def away() -> GatewayAwayError:
    """No answer at all."""
    return GatewayAwayError("the gateway does not answer (ClientConnectorError)")
