"""What the gateway hands on to MLflow: never another request than the one that it checked."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import cast
from urllib.parse import unquote

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Scope

from gangline_gateway import mlflow_proxy
from gangline_gateway.mlflow_jobs import JobTokens
from gangline_gateway.mlflow_proxy import LARGE_BYTES, MlflowProxy
from gangline_gateway.mlflow_scope import JobScope, Narrowed
from gangline_service.job_tokens import JobAttempt
from gangline_service.tokens import Principal, Role

ADA = Principal(name="ada", role=Role.MEMBER, teams=frozenset({"nlp"}))
AWAY = "http://127.0.0.1:9"
"""No MLflow: what passes the checks is answered with 503."""
JOB = JobAttempt("job-1", 1)
RUNNING = cast("JobTokens", SimpleNamespace(scope=lambda _: JobScope("job-1", 1, "nlp")))
"""Finds that each job runs."""
MAKE = "/mlflow/api/2.0/mlflow/model-versions/create"


def ask(
    raw_path: str,
    query: str = "",
    body: bytes | Exception = b"",
    caller: Principal = ADA,
    job: JobAttempt | None = None,
) -> tuple[int, str]:
    """Status and MLflow's code of the error; 0 without an answer."""
    scope: Scope = {
        "type": "http", "method": "POST", "path": unquote(raw_path),
        "raw_path": raw_path.encode(), "query_string": query.encode(),
        "headers": [(b"transfer-encoding", b"chunked")], "state": {"principal": caller, "job": job},
    }  # fmt: skip
    sent: list[Message] = []

    async def receive() -> Message:
        if isinstance(body, Exception):
            raise body
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async def once() -> None:
        proxy = MlflowProxy(AWAY, "t", RUNNING, has_team={"nlp", "a"}.__contains__)
        await proxy(scope, receive, send)
        await proxy.close()

    asyncio.run(once())
    if not sent:
        return 0, ""
    return sent[0]["status"], json.loads(sent[1]["body"])["error_code"]


@pytest.mark.parametrize(
    ("team", "answer"),
    [
        ("nlp", (503, "TEMPORARILY_UNAVAILABLE")),
        ("a", (503, "TEMPORARILY_UNAVAILABLE")),
        ("npl", (404, "RESOURCE_DOES_NOT_EXIST")),
    ],
)
def test_a_team_that_an_admin_mistypes_gets_no_workspace(
    team: str, answer: tuple[int, str]
) -> None:
    admin = Principal(name="root", role=Role.ADMIN, teams=frozenset())
    assert ask(f"/mlflow/teams/{team}/version", caller=admin) == answer


FOREIGN = json.dumps({"name": "m", "source": "s3://bucket/of/others"}).encode()


def test_a_source_of_others_is_refused() -> None:
    for body in (FOREIGN, b"[" * 200_000):
        assert ask(MAKE, body=body) == (400, "INVALID_PARAMETER_VALUE")
    own = json.dumps({"name": "m", "source": "runs:/1/model"}).encode()
    assert ask(MAKE, body=own)[0] == 503


@pytest.mark.parametrize(("of_job", "checks"), [(False, "check_source"), (True, "narrow")])
def test_others_do_not_wait_until_a_large_body_is_checked(
    monkeypatch: pytest.MonkeyPatch, of_job: bool, checks: str
) -> None:
    checked_by = []

    def noted(body: bytes, workspace: str = "") -> bytes:
        checked_by.append(threading.get_ident())
        return body

    narrowed = Narrowed("/x", rewrite=noted)
    monkeypatch.setattr(mlflow_proxy, checks, (lambda *_: narrowed) if of_job else noted)
    for size in (LARGE_BYTES, LARGE_BYTES + 1):
        assert ask(MAKE, body=b"x" * size, job=JOB if of_job else None)[0] == 503
    assert [by == threading.get_ident() for by in checked_by] == [True, False]


@pytest.mark.parametrize(("path", "query"), [(f"{MAKE}#x", ""), (f"{MAKE}#", ""), (MAKE, "a#b")])
def test_a_request_that_would_be_cut_is_refused(path: str, query: str) -> None:
    # A URL ends at #, so MLflow would see another route than the checks did.
    assert ask(path, query, FOREIGN) == (400, "INVALID_PARAMETER_VALUE")
    assert ask("/mlflow/api/2.0/mlflow-artifacts/artifacts/1/a%23b")[0] == 503


def test_a_body_that_is_too_large_gets_its_status() -> None:
    assert ask(MAKE, body=HTTPException(413, "too large")) == (413, "BAD_REQUEST")


def test_a_client_that_goes_gets_no_answer() -> None:
    assert ask(MAKE, body=ConnectionResetError()) == (0, "")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (HTTPException(413, "too large"), (413, "BAD_REQUEST")),
        (HTTPException(408, "too slow"), (408, "BAD_REQUEST")),
        (ConnectionResetError(), None),
    ],
    ids=repr,
)
def test_a_body_that_ends_in_an_error_while_mlflow_reads_it_says_its_own_reason(
    error: Exception, answer: tuple[int, str] | None
) -> None:
    sent: list[Message] = []
    path = "/mlflow/api/2.0/mlflow-artifacts/artifacts/a"
    scope: Scope = {
        "type": "http", "method": "PUT", "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"transfer-encoding", b"chunked")],
        "state": {"principal": ADA},
    }  # fmt: skip

    async def send(message: Message) -> None:
        sent.append(message)

    async def story() -> None:
        reading, ended = asyncio.Event(), asyncio.Event()

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with closing(writer), suppress(ConnectionError):
                while await reader.read(1 << 16):
                    reading.set()
            ended.set()

        async def receive() -> Message:
            if reading.is_set():
                raise error
            if first:
                return first.pop()
            await reading.wait()
            raise error

        first: list[Message] = [{"type": "http.request", "body": b"x" * 1000, "more_body": True}]
        server = await asyncio.start_server(read, "127.0.0.1")
        async with server:
            port = server.sockets[0].getsockname()[1]
            proxy = MlflowProxy(f"http://127.0.0.1:{port}", "t")
            await proxy(scope, receive, send)
            await proxy.close()
            await ended.wait()

    asyncio.run(story())
    if answer is None:
        assert sent == []
    else:
        assert (sent[0]["status"], json.loads(sent[1]["body"])["error_code"]) == answer
