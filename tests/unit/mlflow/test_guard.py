"""What the guard lets in, and how it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("mlflow")

from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE, TEMPORARILY_UNAVAILABLE

from gangline_mlflow import guard
from gangline_mlflow.database import DatabaseAway
from gangline_mlflow.job_runs import JobRuns


def status(make: Callable[[str], None], headers: dict[str, str], has: bool | Exception) -> int:
    """The status of a request with these headers; 200: it was handed on."""
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: Any) -> None:
        sent.append(message)

    async def found(_job: str) -> bool:
        if isinstance(has, Exception):
            raise has
        return has

    scope = {
        "type": "http",
        "path": "/x",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guard, "make_workspace", make)
        asked = guard.Guard(app, cast("JobRuns", SimpleNamespace(has=found)))
        asyncio.run(asked(scope, cast("Any", None), send))
    return int(sent[0]["status"])


def away(_: str) -> None:
    raise MlflowException("the server closed the connection", TEMPORARILY_UNAVAILABLE)


def refused(_: str) -> None:
    raise MlflowException("not a name", INVALID_PARAMETER_VALUE)


NLP = {"x-mlflow-workspace": "nlp"}
JOB = {**NLP, "x-gangline-job": "j"}


@pytest.mark.parametrize(
    ("make", "headers", "has", "expected"),
    [
        (str, NLP, True, 200),
        (str, JOB, True, 200),
        (str, JOB, False, 503),
        (str, {}, True, 400),
        (str, {"x-mlflow-workspace": "default"}, True, 400),
        (refused, NLP, True, 400),
        (away, NLP, True, 503),
        (str, JOB, DatabaseAway("connection refused"), 503),
    ],
)
def test_a_request_is_handed_on_or_refused(
    make: Callable[[str], None], headers: dict[str, str], has: bool | Exception, expected: int
) -> None:
    assert status(make, headers, has) == expected
