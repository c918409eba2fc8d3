"""Answers of hundreds of kilobytes: encoded once, and compressed where the client takes gzip."""

from __future__ import annotations

import gzip
from typing import Annotated

from fastapi import Header, Response
from pydantic import BaseModel

AcceptEncoding = Annotated[str | None, Header(include_in_schema=False)]
_LEVEL = 1  # a few milliseconds; further levels save little


def large_answer(answer: BaseModel, accept_encoding: str | None) -> Response:
    """Not as FastAPI answers with a model: that would validate and convert all values again."""
    body, headers = answer.model_dump_json().encode(), {"Vary": "Accept-Encoding"}
    if "gzip" in (accept_encoding or ""):
        body = gzip.compress(body, _LEVEL, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)


def long_text(answer: BaseModel, field: str) -> str:
    """The JSON of an answer whose last field is a long list of models; call it in a thread.

    One item is encoded at a time, so that the event loop runs meanwhile: 50,000 points of curves
    take it a second else.
    """
    before, _, after = answer.model_copy(update={field: []}).model_dump_json().rpartition("[]")
    items = ",".join(item.model_dump_json() for item in getattr(answer, field))
    return f"{before}[{items}]{after}"


def long_answer(answer: BaseModel, field: str) -> Response:
    """The same as a response."""
    return Response(long_text(answer, field), media_type="application/json")
