"""Errors as problem documents (RFC 9457), with names of fields but never their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from opentelemetry import trace
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from gangline_gateway.followed import NoStateError
from gangline_schemas.api.problem import Problem
from gangline_schemas.base import FieldError, in_words, wrong_parts
from gangline_schemas.secrets import redact

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
MAX_ERRORS = 50
_MAX_NAME = 128


class ProblemError(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})


def not_found(what: str = "job") -> ProblemError:
    """A 404 problem, also for objects of a team that is not the caller's."""
    return ProblemError(404, "not-found", f"there is no such {what}, or it is not your team's")


def forbidden(detail: str, field: str | None = None) -> ProblemError:
    """A 403 problem: the caller is known and may not do this."""
    errors = (FieldError(field=field, message=detail),) if field else ()
    return ProblemError(403, "forbidden", detail, errors=errors)


def invalid(field: str, message: str) -> ProblemError:
    """A 422 problem: one field of the request is wrong."""
    return ProblemError(
        422, "invalid", f"{field}: {message}", errors=[FieldError(field=field, message=message)]
    )


def conflict(code: str, detail: str) -> ProblemError:
    """A 409 problem: the current state does not allow the request."""
    return ProblemError(409, code, detail)


def unavailable(code: str, detail: str) -> ProblemError:
    """A 503 problem: a needed service is unavailable; a later attempt may succeed."""
    return ProblemError(503, code, detail, headers={"Retry-After": str(RETRY_AFTER_S)})


def too_many(limit: str, retry_after_s: int) -> ProblemError:
    """A 429 problem: the user exceeds a limit; a later attempt may succeed."""
    return ProblemError(
        429,
        "too-many",
        f"your token is limited to {limit}; try again after Retry-After seconds",
        headers={"Retry-After": str(max(1, retry_after_s))},
    )


def trace_id() -> str:
    """The trace id of the current request."""
    return trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)


_MLFLOW_CODES = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "REQUEST_LIMIT_EXCEEDED"}


def response(
    error: ProblemError, instance: str | None = None, *, mlflow: bool = False
) -> JSONResponse:
    """The problem document as a response; with `mlflow` also the fields of MLflow's errors."""
    problem = Problem(
        type=f"urn:gangline:problem:{error.code}",
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=redact(error.detail),
        instance=f"urn:gangline:request:{instance or trace_id()}",
        errors=error.errors[:MAX_ERRORS],
    )
    document = problem.model_dump(mode="json")
    if mlflow:
        code = _MLFLOW_CODES.get(error.status, "BAD_REQUEST")
        document |= {"error_code": code, "message": problem.detail}
    return JSONResponse(
        document,
        status_code=error.status,
        headers=error.headers,
        media_type=MEDIA_TYPE,
    )


def install(app: FastAPI) -> None:
    """Answers every error of the application with a problem document."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(NoStateError, _no_state)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _unexpected)


def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)  # noqa: S101 - registered for it
    return response(error, request.scope.get("trace_id"))


def _no_state(request: Request, error: Exception) -> JSONResponse:
    return _problem(request, unavailable("no-answer", str(error)))


def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for it
    found = [
        _field_error(item["loc"], in_words(item["type"], item["msg"], item.get("ctx", {})))
        for item in wrong_parts(error.errors())
    ]
    first = found[0]
    problem = ProblemError(422, "invalid", f"{first.field}: {first.message}", errors=found)
    return response(problem, request.scope.get("trace_id"))


def _field_error(location: Sequence[object], message: str) -> FieldError:
    parts = [str(part) for part in location]
    if parts and parts[0] == "body":
        parts = parts[1:]
    field = redact(".".join(parts))[:_MAX_NAME] or "(body)"
    return FieldError(field=field, message=redact(message))


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    codes = {
        400: "malformed", 404: "no-such-route", 405: "method-not-allowed", 408: "too-slow",
        413: "too-large",
    }  # fmt: skip
    details = {
        404: "there is no such route; see /v1/openapi.json",
        405: "this route has no such method; see the Allow header",
    }
    problem = ProblemError(
        error.status_code,
        codes.get(error.status_code, "http"),
        details.get(error.status_code, error.detail),
        headers=error.headers,
    )
    return response(problem, request.scope.get("trace_id"))


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    log.error("request failed", exc_info=error, path=request.scope.get("path", "")[:200])
    problem = ProblemError(
        500, "internal", "an error in the gateway; an operator finds it in its log by the trace id"
    )
    return response(problem, request.scope.get("trace_id"))
