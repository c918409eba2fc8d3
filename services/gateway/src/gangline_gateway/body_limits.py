"""The sizes of headers and bodies that requests may have, by their path."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from gangline_gateway.mlflow_routes import is_mlflow, takes_files
from gangline_gateway.problems import ProblemError
from gangline_service.request_body import BodyTooLarge, BodyTooSlow, bounded

JSON_LIMIT_BYTES = 1 << 20
BUNDLE_LIMIT_BYTES = 64 << 20
MLFLOW_LIMIT_BYTES = 32 << 20
_MLFLOW_HINT = (
    ": the value of a parameter has at most 6,000 characters, that of a tag 8,000; "
    "keep larger texts as artifacts"
)
SCORES_LIMIT_BYTES = 16 << 20
FILE_LIMIT_BYTES = 64 << 30
FORM_LIMIT_BYTES = 16 << 10
HEADERS_LIMIT_BYTES = 32 << 10
BUNDLES_PATH = "/v1/code-bundles"


def limit_of(path: str) -> int:
    """The bytes that the body of a request may have."""
    if path == BUNDLES_PATH:
        return BUNDLE_LIMIT_BYTES
    if takes_files(path):
        return FILE_LIMIT_BYTES
    if path == "/v1/profiles" or (path.startswith("/v1/models/") and path.endswith("/evaluations")):
        return SCORES_LIMIT_BYTES
    return MLFLOW_LIMIT_BYTES if is_mlflow(path) else JSON_LIMIT_BYTES


def _too_large(limit: int) -> str:
    # Only MLflow's limit has this value.
    hint = _MLFLOW_HINT if limit == MLFLOW_LIMIT_BYTES else ""
    return f"the body is above {limit:,} bytes{hint}"


def check_length(headers: Headers, limit: int) -> None:
    """Raises a 400, 413 or 431 problem."""
    if sum(len(name) + len(value) for name, value in headers.raw) > HEADERS_LIMIT_BYTES:
        raise ProblemError(431, "too-large", "the headers are too large")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise ProblemError(400, "malformed", "Content-Length must be a number")
    if len(length) > 18 or int(length) > limit:
        raise ProblemError(413, "too-large", _too_large(limit))


def limited(receive: Receive, limit: int) -> Receive:
    """The body within its limits of size and time. Raises HTTPException, which FastAPI forwards."""
    within = bounded(receive, limit)

    async def checked() -> Message:
        try:
            return await within()
        except BodyTooSlow as error:
            raise HTTPException(408, str(error)) from None
        except BodyTooLarge:
            raise HTTPException(413, _too_large(limit)) from None

    return checked
