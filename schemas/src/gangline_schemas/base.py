"""The base of every published model: frozen, strict for producers, tolerant for consumers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel


def _to_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError("must lie in the years 1 to 9999 in UTC") from None


_UNKNOWN = "extra_forbidden"
_MAX_ERRORS = 100
_MAX_PATH_CHARS = 200
_MAX_MESSAGE_CHARS = 1000
_IDENTIFIER = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Identifier = Annotated[str, StringConstraints(pattern=_IDENTIFIER)]
"""A job, team, node or project name: 1 to 63 of a-z, 0-9 and '-', as in a DNS label."""

Timestamp = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""A point in time with its zone; kept and written in UTC."""


class Model(BaseModel):
    """A frozen value. Unknown fields are refused, except when read with `decode`.

    Names are snake_case; the camelCase form of each is accepted too (interfaces.md). An error
    never repeats the value it is about: a value may be a secret.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=False,
        loc_by_alias=False,
        allow_inf_nan=False,
    )

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        """Read JSON as a consumer does: fields that this version does not know are ignored."""
        return cls.model_validate_json(raw, extra="ignore")

    def encode(self) -> bytes:
        """Write as compact UTF-8 JSON, without fields that are unset at their default None."""
        return self.model_dump_json(exclude_none=True).encode()

    def data(self) -> dict[str, Any]:
        """The JSON form as a Python object."""
        return self.model_dump(mode="json", exclude_none=True)


class Event(Model):
    """Something that happened. `type` is its published CloudEvents type and never changes."""

    type: ClassVar[str]


class FieldError(Model):
    """What is wrong with one field, and the way out; never the value itself."""

    field: str
    message: str


def field_errors(
    error: ValidationError, prefix: str = "", model: type[BaseModel] | None = None
) -> tuple[FieldError, ...]:
    """Pydantic's errors as (dotted field, message) pairs without the offending values.

    At most the first 100, and each text is cut: names and numbers of fields are the sender's too.
    With the `model` that was read, a field that it does not have is told the nearest one, or all.
    """
    found = []
    for item in error.errors(include_url=False, include_input=False)[:_MAX_ERRORS]:
        path = ".".join(str(part)[: _MAX_PATH_CHARS + 1] for part in item["loc"])
        if prefix and path:
            path = f"{prefix}.{path}"
        message = in_words(item["type"], item["msg"], item.get("ctx", {}))
        if item["type"] == _UNKNOWN:
            message += _nearest(model, item["loc"])
        found.append(
            FieldError(
                field=_cut(path, _MAX_PATH_CHARS) or prefix or "(body)",
                message=_cut(message, _MAX_MESSAGE_CHARS),
            )
        )
    return tuple(found)


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}..."


def in_words(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What pydantic says of a field, for those who wrote the field."""
    if kind == _UNKNOWN:
        return "there is no such field"
    if kind == "missing":
        return "must be given"
    if context.get("pattern") == _IDENTIFIER:
        return "must be 1 to 63 of a-z, 0-9 and '-', not with '-' at the ends"
    return message.removeprefix("Value error, ")


def _nearest(model: type[BaseModel] | None, place: tuple[int | str, ...]) -> str:
    """The field of the same mapping that was meant, or all that there are if none is alike."""
    *parents, name = place
    for part in parents:
        field = model.model_fields.get(str(part)) if model is not None else None
        model = _model_in(field.annotation) if field is not None else None
    if model is None:
        return ""
    near = get_close_matches(str(name), model.model_fields, 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(model.model_fields)}"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field's type, also of `Model | None`; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
