"""/v1/code-bundles: packed working directories, stored under their digest."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Query, Request, Response

from gangline_gateway.app_context import (
    ID_PATTERN,
    UPLOAD_WAIT_S,
    UPLOADS,
    App,
    AppContext,
    Caller,
    answers,
    may_change,
    router,
)
from gangline_gateway.body_limits import BUNDLES_PATH
from gangline_gateway.objects import keep, store_of
from gangline_gateway.problems import ProblemError, invalid, unavailable
from gangline_schemas.api.jobs import BundleStored
from gangline_schemas.checkpoint import code_key
from gangline_storage.port import ObjectStore

bundles = router("Jobs")
_TYPES = frozenset({"application/gzip", "application/x-gzip", "application/octet-stream"})
_IN_MEMORY_BYTES = 4 << 20


@bundles.post(
    BUNDLES_PATH,
    operation_id="uploadCodeBundle",
    summary="Upload a working directory",
    status_code=201,
    response_model=BundleStored,
    responses={
        200: {"model": BundleStored, "description": "It was there already."},
        **answers(413, 415),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def upload_bundle(
    request: Request,
    response: Response,
    app: App,
    caller: Caller,
    team: Annotated[str, Query(pattern=ID_PATTERN, description="The team whose jobs use it.")],
) -> BundleStored:
    """A tar.gz of at most 64 MiB. Its sha256 goes into a job as `code_bundle`."""
    may_change(caller, team)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _TYPES:
        raise ProblemError(415, "content-type", "send the tar.gz as application/gzip")
    store = store_of(app)
    with app.uploads_of.hold(caller.name):
        async with _upload_slot(app):
            digest, size, created = await _store(request, store, team)
    if not created:
        response.status_code = 200
    return BundleStored(digest=digest, size_bytes=size)


@asynccontextmanager
async def _upload_slot(app: AppContext) -> AsyncIterator[None]:
    try:
        await asyncio.wait_for(app.uploads.acquire(), UPLOAD_WAIT_S)
    except TimeoutError:
        raise unavailable("busy", f"{UPLOADS} uploads are running; try again") from None
    try:
        yield
    finally:
        app.uploads.release()


async def _store(request: Request, store: ObjectStore, team: str) -> tuple[str, int, bool]:
    """The bundle's sha256 and size, and whether it is new. Raises problems."""
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as file:
        digest, size = hashlib.sha256(), 0
        async for chunk in request.stream():
            digest.update(chunk)
            size += len(chunk)
            await asyncio.to_thread(file.write, chunk)
        if size == 0:
            raise invalid("(body)", "is empty")
        file.seek(0)
        key = code_key(team, digest.hexdigest())
        created = await asyncio.to_thread(keep, store, key, file)
    return digest.hexdigest(), size, created
