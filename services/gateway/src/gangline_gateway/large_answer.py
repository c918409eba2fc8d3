"""Answers as JSON: made outside the event loop, in parts, and compressed where clients take gzip.

So others are answered meanwhile: a list of 12,000 jobs held the loop for 35 ms and more. A thread
alone is not enough: pydantic keeps the interpreter's lock until a whole model is JSON.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import Header, Response
from pydantic import BaseModel

_LEVEL = 1  # a few milliseconds; further levels save little
_AT_ONCE = 100
"""Items of a list that become JSON in one step: most take less than a millisecond."""
_COMPRESSED_FROM = 1_000  # bytes: shorter ones fit into one packet
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="answers")
_HEADER = "accept_encoding"

AcceptEncoding = Annotated[str | None, Header(include_in_schema=False)]
Endpoint = Callable[..., Any]


def rendering(endpoint: Endpoint, status: int | None) -> Endpoint:
    """`endpoint`, which makes a response of its model: in its own thread, or in one of a few.

    Not as FastAPI answers with a model: that would make the JSON in the event loop. Short answers
    of a coroutine, and endpoints that set headers by a parameter, stay with FastAPI.
    """
    signature = inspect.signature(endpoint, eval_str=True)
    parameters = [*signature.parameters.values()]
    if any(each.annotation is Response for each in parameters) or _HEADER in signature.parameters:
        return endpoint

    if inspect.iscoroutinefunction(endpoint):

        @functools.wraps(endpoint)
        async def rendered(*args: Any, **given: Any) -> Any:
            accepted, found = given.pop(_HEADER), await endpoint(*args, **given)
            if not isinstance(found, BaseModel) or not _is_long(found):
                return found
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(_THREADS, response_of, found, accepted, status)

    else:

        @functools.wraps(endpoint)
        def rendered(*args: Any, **given: Any) -> Any:
            accepted, found = given.pop(_HEADER), endpoint(*args, **given)
            return response_of(found, accepted, status) if isinstance(found, BaseModel) else found

    header = inspect.Parameter(
        _HEADER, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=AcceptEncoding
    )
    rendered.__signature__ = signature.replace(parameters=[*parameters, header])  # type: ignore[attr-defined]
    return rendered


def response_of(
    answer: BaseModel, accept_encoding: str | None = None, status: int | None = None
) -> Response:
    """An answer as a response, compressed if it is long and the client takes gzip."""
    body, headers = json_of(answer).encode(), {"Vary": "Accept-Encoding"}
    if len(body) >= _COMPRESSED_FROM and "gzip" in (accept_encoding or ""):
        body = gzip.compress(body, _LEVEL, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status or 200, media_type="application/json", headers=headers)


def json_of(answer: BaseModel) -> str:
    """The same text as `model_dump_json`; between parts of its lists, other threads can run."""
    return "".join(_pieces(answer))


def _pieces(answer: BaseModel) -> Iterator[str]:
    if not _is_long(answer):
        yield answer.model_dump_json()
        return
    before = "{"
    for name, value in answer:
        yield f'{before}"{name}":'
        if name in _lists(type(answer)) and value and isinstance(value[0], BaseModel):
            yield from _items(answer, name, value)
        else:
            yield _value(answer, name)
        before = ","
    yield "}"


def _items(answer: BaseModel, name: str, items: Sequence[Any]) -> Iterator[str]:
    before, at = "[", 0
    while at < len(items):
        end = at
        while end < min(at + _AT_ONCE, len(items)) and not _is_long(items[end]):
            end += 1
        yield before
        if end > at:
            part = answer.model_copy(update={name: items[at:end]})
            yield _value(part, name)[1:-1]
        else:
            yield from _pieces(items[at])
        before, at = ",", max(end, at + 1)
    yield "]"


def _value(answer: BaseModel, name: str) -> str:
    return answer.model_dump_json(include={name})[len(name) + 4 : -1]


def _is_long(value: object) -> bool:
    """Whether a model, or one of those in its lists, has a list with many items."""
    if not isinstance(value, BaseModel):
        return False
    lists = [getattr(value, name) or () for name in _lists(type(value))]
    return any(len(each) > _AT_ONCE or any(map(_is_long, each)) for each in lists)


@functools.cache
def _lists(kind: type[BaseModel]) -> frozenset[str]:
    """The fields that are lists of something."""
    return frozenset(
        name for name, field in kind.model_fields.items() if _is_list(field.annotation)
    )


def _is_list(annotation: object) -> bool:
    kind = get_origin(annotation)
    inner = get_args(annotation) if kind in {Annotated, Union, UnionType} else ()
    return kind in {list, tuple} or any(map(_is_list, inner))
