"""The base of all answers: strict where they are built, tolerant where they are read.

A reader ignores fields that its version does not know, keeps unknown words (`OPEN_WORD`), and
takes a spec that it cannot read as None (`OR_NONE`). A field that a later version adds has a
default, so that its clients can read an earlier gateway.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from gangline_schemas.base import FailsFast

AnswerT = TypeVar("AnswerT")
_READING = {"reading": True}


class Answer(BaseModel):
    """A frozen value; the gateway names each of its fields. Times are UTC."""

    # Validators are built at the first use: a command of the CLI uses few of the answers.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Body(FailsFast):
    """The body of a request; unknown fields are refused, and so are NaN and infinity."""

    # FastAPI takes models that are built: of others pydantic warns.
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def read(kind: type[AnswerT], content: Any) -> AnswerT:
    """JSON values as an answer of this or a later version. Raises ValidationError."""
    return TypeAdapter(kind).validate_python(content, extra="ignore", context=_READING)


def parse(kind: type[AnswerT], text: str) -> AnswerT:
    """JSON text as an answer of this or a later version. Raises ValidationError."""
    return TypeAdapter(kind).validate_json(text, extra="ignore", context=_READING)


def _word(value: Any, known: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return known(value)
    except ValidationError:
        if info.context is _READING and isinstance(value, str):
            return value
        raise


def _or_none(value: Any, known: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    try:
        return known(value)
    except ValidationError:
        if info.context is _READING:
            return None
        raise


OPEN_WORD = WrapValidator(_word)
"""Marks one of some words: a reader keeps a word that a later version adds, as text."""
OR_NONE = WrapValidator(_or_none)
"""Marks a value that a reader takes as None where a later version wrote what it cannot read."""
