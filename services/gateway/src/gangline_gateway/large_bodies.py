"""JSON bodies before FastAPI reads them: large ones are checked in threads.

So others are answered meanwhile: a valid body of 1 MiB, such as a pipeline of 100 studies, takes a
second of CPU time. A body with text that is not Unicode is refused, since no event can hold it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request
from fastapi._compat import ModelField
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.responses import Response

from gangline_schemas.limits import is_torn

LARGE_BYTES = 16 << 10
"""A smaller body takes at most some 30 ms; most take less than the way to a thread and back."""
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="bodies")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class _Checked(Request):
    """A request whose parsed body is the model that was made of it: FastAPI takes it as it is."""

    def __init__(self, request: Request, model: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._read: Callable[[], Awaitable[bytes]] = request.body
        self._model = model

    async def body(self) -> bytes:
        return await self._read()

    async def json(self) -> Any:
        return self._model


def checking(handle: Handler, field: ModelField) -> Handler:
    """`handle`, with bodies checked for torn text before, and large ones against `field`."""

    async def handler(request: Request) -> Response:
        if "json" in request.headers.get("content-type", ""):
            raw = await request.body()
            if len(raw) > LARGE_BYTES:
                loop = asyncio.get_running_loop()
                model = await loop.run_in_executor(_THREADS, _model_of, raw, field)
                if model is not None:
                    request = _Checked(request, model)
            else:
                _check_text(raw)
        return await handle(request)

    return handler


def _model_of(raw: bytes, field: ModelField) -> BaseModel | None:
    """The body as a model; None: FastAPI says what is wrong with it, or what it becomes.

    Raises RequestValidationError.
    """
    _check_text(raw)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    model, errors = field.validate(content, {}, loc=("body",))
    if errors:
        raise RequestValidationError(errors, body=content)
    same = isinstance(model, BaseModel) and field.validate(model, {}, loc=("body",))[0] is model
    return model if same else None


def _check_text(raw: bytes) -> None:
    """Raise RequestValidationError for half of a surrogate pair, which Python's JSON lets in."""
    if b"\\u" not in raw and _is_utf8(raw):
        return
    try:
        content = json.loads(raw)
        if not _has_torn(content):
            return
    except (ValueError, RecursionError):
        return  # FastAPI says what is wrong with it
    parts = content.items() if isinstance(content, dict) else ()
    fields = [name for name, value in parts if _has_torn(value) and not _has_torn(name)]
    message = "holds text that is not Unicode"
    raise RequestValidationError(
        [{"type": "value_error", "loc": ("body", *fields[:1]), "msg": message}]
    )


def _has_torn(value: object) -> bool:
    return is_torn(json.dumps(value, ensure_ascii=False))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
