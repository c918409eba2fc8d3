"""Each number, text, list and mapping that is read from outside says how large it may be.

A new field without limits fails here: give it a type of `gangline_schemas.limits`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue, TypeAdapter

from gangline_schemas.api.questions import JobExplained, WhatIfAnswer
from gangline_schemas.base import FieldError, Identifier, Timestamp
from gangline_schemas.catalog import event_types
from gangline_schemas.checkpoint import CommitRecord, RankManifest
from gangline_schemas.job import JobSpec
from gangline_schemas.limits import JsonObject
from gangline_schemas.rank_protocol import FROM_AGENT, FROM_RANK
from support.builders.rest_document import request_bodies

WIDEST_PATTERN = 4096
READ: dict[str, TypeAdapter[Any]] = {
    **{name: TypeAdapter(model) for name, model in event_types().items()},
    "job-spec": TypeAdapter(JobSpec),
    "rank-manifest": TypeAdapter(RankManifest),
    "commit-record": TypeAdapter(CommitRecord),
    "from-rank": FROM_RANK,
    "from-agent": FROM_AGENT,
    "job-explained": TypeAdapter(JobExplained),
    "what-if": TypeAdapter(WhatIfAnswer),
    "field-error": TypeAdapter(FieldError),
}
Schema = Mapping[str, Any]


def unbounded(document: Schema) -> list[str]:
    return sorted(set(_problems(document, document, "", frozenset())))


def _problems(schema: Schema, document: Schema, where: str, seen: frozenset[str]) -> Iterator[str]:
    reference = schema.get("$ref")
    if reference is not None:
        if reference in seen:
            yield f"{where}: nests without end"
            return
        target = document["$defs"][reference.removeprefix("#/$defs/")]
        yield from _problems(target, document, where, seen | {reference})
        return
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(key, ()):
            yield from _problems(choice, document, where, seen)
    if not {"enum", "const", "anyOf", "oneOf"} & schema.keys():
        yield from _of_type(schema, document, where, seen)


def _of_type(schema: Schema, document: Schema, where: str, seen: frozenset[str]) -> Iterator[str]:
    match schema.get("type"):
        case "integer" | "number":
            yield from _number(schema, where)
        case "string":
            yield from _text(schema, where)
        case "array":
            if "maxItems" not in schema:
                yield f"{where}: a list without maxItems"
            parts = (schema.get("items"), *schema.get("prefixItems", ()))
            for part in filter(None, parts):
                yield from _problems(part, document, f"{where}[]", seen)
        case "object":
            yield from _object(schema, document, where, seen)
        case None:
            yield f"{where}: anything at all"
        case _:
            pass


def _number(schema: Schema, where: str) -> Iterator[str]:
    if not {"minimum", "exclusiveMinimum"} & schema.keys():
        yield f"{where}: a number without a minimum"
    if not {"maximum", "exclusiveMaximum"} & schema.keys():
        yield f"{where}: a number without a maximum"


def _text(schema: Schema, where: str) -> Iterator[str]:
    if schema.get("format") == "date-time":
        if not {"formatMinimum", "formatExclusiveMaximum"} <= schema.keys():
            yield f"{where}: a time without bounds; use Timestamp"
    elif "maxLength" not in schema:
        pattern = schema.get("pattern")
        if pattern is None or _widest(pattern) > WIDEST_PATTERN:
            yield f"{where}: a text without maxLength"


def _widest(pattern: str) -> int:
    return int(re._parser.parse(pattern).getwidth()[1])  # type: ignore[attr-defined]


def _object(schema: Schema, document: Schema, where: str, seen: frozenset[str]) -> Iterator[str]:
    for name, part in schema.get("properties", {}).items():
        yield from _problems(part, document, f"{where}.{name}", seen)
    values = [*schema.get("patternProperties", {}).values()]
    if isinstance(schema.get("additionalProperties"), Mapping):
        values.append(schema["additionalProperties"])
    if "properties" in schema:
        return
    if "x-json-depth" in schema and "maxProperties" in schema:  # whose numbers are bounded too
        return
    if "maxProperties" not in schema:
        yield f"{where}: a mapping without maxProperties"
    if not schema.get("patternProperties") and "maxLength" not in schema.get("propertyNames", {}):
        yield f"{where}: names without maxLength"
    for part in values:
        yield from _problems(part, document, f"{where}{{}}", seen)


@pytest.mark.parametrize("name", sorted(READ))
def test_what_is_read_from_outside_has_bounds(name: str) -> None:
    assert unbounded(READ[name].json_schema(by_alias=False)) == []


@pytest.mark.parametrize("route", sorted(request_bodies()))
def test_what_a_request_sends_has_bounds(route: str) -> None:
    assert unbounded(request_bodies()[route]) == []


class _Careless(BaseModel):
    count: int
    share: float
    text: str
    name: Identifier
    at: Timestamp
    items: list[int]
    by_name: dict[str, float]
    anything: JsonValue
    free: JsonObject


def test_a_field_without_bounds_is_found() -> None:
    found = unbounded(TypeAdapter(_Careless).json_schema())
    assert [line.split(":")[0] for line in found] == [
        ".anything", ".by_name", ".by_name", ".by_name{}", ".by_name{}", ".count", ".count",
        ".items", ".items[]", ".items[]", ".share", ".share", ".text",
    ]  # fmt: skip
