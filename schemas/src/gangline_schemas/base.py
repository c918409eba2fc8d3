"""The base of every published model: frozen, strict for producers, tolerant for consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, ErrorDetails

from gangline_schemas.limits import EARLIEST, LATEST, MAX_NODES, PLAIN, cut

DetailsT = TypeVar("DetailsT", bound=ErrorDetails)
YEARS = f"{EARLIEST.year} to {LATEST.year - 1}"


def to_utc(value: datetime) -> datetime:
    """A time in UTC. Raises ValueError outside of `YEARS`, which arithmetic could leave else."""
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        utc = None
    if utc is None or not EARLIEST <= utc < LATEST:
        raise ValueError(f"must lie in the years {YEARS} in UTC")
    return utc


_UNKNOWN = "extra_forbidden"
_TOO_SHORT = "too_short"
_NOT_DERIVED = "default_factory_not_called"
ERRORS_SHOWN = 100
WHOLE = "(body)"
"""The field of an error about all of a value."""
_PATH_CHARS = 200
_COLLECTIONS = frozenset({"list", "tuple", "set", "frozenset", "dict"})
NAME_CHARS = 63
"""Of a DNS label."""
_IDENTIFIER = rf"^[a-z0-9]([a-z0-9-]{{0,{NAME_CHARS - 2}}}[a-z0-9])?$"
Identifier = Annotated[str, StringConstraints(pattern=_IDENTIFIER)]
"""A job, team, node or project name: 1 to 63 of a-z, 0-9 and '-', as in a DNS label."""
NodeIds = Annotated[tuple[Identifier, ...], Field(max_length=MAX_NODES)]
Team = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$")]
"""The name of a team, "" where it is not known."""

Timestamp = Annotated[
    AwareDatetime,
    AfterValidator(to_utc),
    Field(
        json_schema_extra={
            "formatMinimum": f"{EARLIEST:%FT%TZ}",
            "formatExclusiveMaximum": f"{LATEST:%FT%TZ}",
        }
    ),
]
"""A point in time with its zone; kept and written in UTC."""


def _fail_fast(schema: Any) -> None:
    """Let every collection of a core schema end at its first wrong part."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _fail_fast(part)
    elif isinstance(schema, dict):
        kind = schema.get("type")  # a schema again, where a model has a field of that name
        if isinstance(kind, str) and kind in _COLLECTIONS:
            schema["fail_fast"] = True
        for name, part in schema.items():
            if name != "metadata":
                _fail_fast(part)


class FailsFast(BaseModel):
    """Of a collection the first wrong part is named.

    A record with a million of them must not cost more than one with a right one.
    """

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        _fail_fast(schema)
        return schema


class Model(FailsFast):
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


def _cut_at(most: int) -> tuple[BeforeValidator, StringConstraints]:
    return BeforeValidator(partial(cut, most=most)), StringConstraints(max_length=most)


class FieldError(Model):
    """The error in one field, and the way out; never the value itself.

    Both texts are cut where they are longer than this.
    """

    field: Annotated[str, *_cut_at(_PATH_CHARS)]
    message: Annotated[str, *_cut_at(1000)]


def field_errors(
    error: ValidationError, prefix: str = "", model: type[BaseModel] | None = None
) -> tuple[FieldError, ...]:
    """Pydantic's errors as (dotted field, message) pairs without the offending values.

    At most the first 100, and each text is cut: the sender also chooses the names and number of
    fields. With the `model` that was read, an unknown field's message names the nearest field, or
    all.
    """
    found = []
    for item in wrong_parts(error.errors(include_url=False, include_input=False)):
        path = ".".join(str(part)[: _PATH_CHARS + 1] for part in item["loc"])
        if prefix and path:
            path = f"{prefix}.{path}"
        message = in_words(item["type"], item["msg"], item.get("ctx", {}))
        if item["type"] == _UNKNOWN:
            message += _nearest(model, item["loc"])
        found.append(FieldError(field=path or prefix or WHOLE, message=message))
    return tuple(found)


def wrong_parts(items: Sequence[DetailsT]) -> list[DetailsT]:
    """The first 100 of pydantic's errors, without those that only follow from another.

    A collection that ended at a wrong part counts as too short as well, and a field that is left
    out is not derived from wrong ones.
    """
    first = [item for item in items if item["type"] != _NOT_DERIVED][:ERRORS_SHOWN]
    places = [(*item["loc"],) for item in first]
    return [
        item
        for item, place in zip(first, places, strict=True)
        if item["type"] != _TOO_SHORT
        or not any(len(other) > len(place) and other[: len(place)] == place for other in places)
    ]


def in_words(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Pydantic's message in words for the author of the field."""
    if kind == _UNKNOWN:
        return "there is no such field"
    if kind == "missing":
        return "is missing"
    if context.get("pattern") == _IDENTIFIER:
        return "must be 1 to 63 of a-z, 0-9 and '-', not with '-' at the ends"
    if context.get("pattern") == PLAIN:
        return "must not hold control characters"
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
