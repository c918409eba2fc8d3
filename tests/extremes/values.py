"""Documents that a schema's field turns into others: the least, the most, and no values at all.

All is derived from the JSON Schema, so a new field is tried without a line here. Values are pieces
of raw JSON text, since much of what is tried no JSON library would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

NUMBERS = (
    "0", "-0", "-0.0", "1", "-1", "5e-324", "1e-310", "1e-9", "1e308", "-1e308", "1e400",
    str(2**53 - 1), str(2**53), str(2**63 - 1), str(2**63), str(-(2**63) - 1), "1" + "0" * 400,
    "NaN", "Infinity", "-Infinity", '"NaN"',
)  # fmt: skip
TEXTS = (
    '""', '" "', '"NaN"', '"\\u0000"', '"\\u001b[2J"', '"\\ud800"', '"\\u202e\\u0301\\uffff"',
    '"a\\nb"', '"\\ud83d\\ude00"', '"../../x"', "\"'); DROP TABLE x; --\"",
)  # fmt: skip
TIMES = (
    "1970-01-01T00:00:00Z", "2199-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", "2200-01-01T00:00:00Z", "2026-11-21T08:00:00",
)  # fmt: skip
SAMPLES = (
    "a", "0" * 32, "0" * 64, "2026-11", "2026-11-21T08:00:00Z", "auto",
    f"corpus@xxh3-{'0' * 32}", "rack", "A",
)  # fmt: skip
WRONG = ("null", "true", "{}", "[]")
DEEP = 33
MANY_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a document and the schemas that hold there."""

    path: Path
    choices: tuple[Schema, ...]

    @property
    def name(self) -> str:
        """As it is shown."""
        return ".".join(map(str, self.path))


def fields(document: Schema, sample: Any) -> list[Field]:
    """All places of a schema, below those of `sample` that are there and all that could be."""
    return list(_fields(document, (document,), sample, (), ()))


def _fields(
    document: Schema, given: Sequence[Schema], sample: Any, path: Path, seen: tuple[str, ...]
) -> Iterator[Field]:
    choices = tuple(_choices(document, given))
    if path:
        yield Field(path, choices)
    for schema in choices:
        title = str(schema.get("title"))
        if "properties" in schema:
            if seen.count(title) > 1:
                continue
            for name, part in schema["properties"].items():
                inner = sample.get(name) if isinstance(sample, dict) else None
                yield from _fields(document, (part,), inner, (*path, name), (*seen, title))
        elif schema.get("type") == "object":
            values = [*schema.get("patternProperties", {}).values()]
            if isinstance(schema.get("additionalProperties"), Mapping):
                values.append(schema["additionalProperties"])
            key = next(iter(sample), "a") if isinstance(sample, dict) else "a"
            inner = sample.get(key) if isinstance(sample, dict) else None
            if values:
                yield from _fields(document, values, inner, (*path, key), seen)
        elif schema.get("type") == "array":
            parts = schema.get("prefixItems") or [schema.get("items", {})]
            inner = sample[0] if isinstance(sample, list) and sample else None
            yield from _fields(document, parts[:1], inner, (*path, 0), seen)


def _choices(document: Schema, given: Sequence[Schema]) -> Iterator[Schema]:
    for schema in given:
        if "$ref" in schema:
            target = document["$defs"][schema["$ref"].removeprefix("#/$defs/")]
            yield from _choices(document, (target,))
        elif "anyOf" in schema or "oneOf" in schema:
            yield from _choices(document, schema.get("anyOf") or schema["oneOf"])
        else:
            yield schema


def raw_values(document: Schema, field: Field, present: str | None) -> list[str]:
    """What to put there, each once. `present` is what stands there now."""
    found = list(WRONG)
    for schema in field.choices:
        found += _of(document, schema, present)
    return list(dict.fromkeys(found))


def _of(document: Schema, schema: Schema, present: str | None) -> Iterator[str]:
    if "enum" in schema or "const" in schema:
        yield from map(json.dumps, schema.get("enum", [schema.get("const")]))
        return
    match schema.get("type"):
        case "integer" | "number":
            yield from NUMBERS
            yield from _edges(schema)
        case "boolean":
            yield from ("true", "false")
        case "string" if schema.get("format") == "date-time":
            yield from map(json.dumps, TIMES)
        case "string":
            yield from TEXTS
            yield from map(json.dumps, SAMPLES)
            yield from _lengths(schema)
        case "array":
            one = present[1:-1] if present and present not in {"[]", "null"} else None
            one = one or example(
                document, schema.get("items", (schema.get("prefixItems") or [{}])[0])
            )
            most = schema.get("maxItems", 1)
            yield f"[{one},{one}]"
            yield f"[{','.join([one] * min(most, max(2, MANY_BYTES // (len(one) + 1))))}]"
        case "object" if "properties" not in schema:
            yield from _mappings(document, schema)
        case "object":
            yield example(document, schema)
        case _:  # any JSON
            yield from ("NaN", str(10**400), "[" * DEEP + "]" * DEEP, "[" * 197 + "]" * 197)
            yield from (*NUMBERS, *TEXTS)


def _edges(schema: Schema) -> Iterator[str]:
    for key, step in (
        ("minimum", -1),
        ("maximum", 1),
        ("exclusiveMinimum", 1),
        ("exclusiveMaximum", -1),
    ):
        if key in schema:
            edge = schema[key]
            yield json.dumps(edge)
            yield json.dumps(edge + step)


def _lengths(schema: Schema) -> Iterator[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 63)
    for length in (least, most, most + 1):
        yield json.dumps("a" * length)
    yield json.dumps("\N{GRINNING FACE}" * most)
    yield json.dumps("\x01" * most)


def _mappings(document: Schema, schema: Schema) -> Iterator[str]:
    inner = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    one = next((example(document, part) for part in inner if isinstance(part, Mapping)), "1")
    many = min(schema.get("maxProperties", 1), max(2, MANY_BYTES // (len(one) + 8)))
    yield _object({f"k{number}": one for number in range(many)})
    longest = schema.get("propertyNames", {}).get("maxLength", 128)
    yield f'{{"{"k" * longest}":{one}}}'
    for name in ('""', '"\\u001b"', '"\\ud800"', '"\\ud83d\\ude00"'):
        yield f"{{{name}:{one}}}"
    if "x-json-depth" in schema:
        yield from ('{"a":NaN}', f'{{"steps":{10**400}}}', '{"steps":1e308}', '{"steps":-1}')
        yield from (f'{{"a":{"[" * depth}{"]" * depth}}}' for depth in (DEEP - 1, DEEP, 197))


def example(document: Schema, schema: Schema) -> str:
    """A small value of a schema, as raw JSON; a guess where a pattern must match."""
    if "default" in schema:
        return json.dumps(schema["default"])
    choices = _choices(document, (schema,))
    chosen = next((item for item in choices if item.get("type") != "null"), {})
    if "const" in chosen or "enum" in chosen:
        return json.dumps(chosen.get("const", chosen.get("enum", [None])[0]))
    simple = {
        "boolean": "true",
        "integer": json.dumps(max(1, chosen.get("minimum", 1))),
        "number": json.dumps(max(1, chosen.get("minimum", 1))),
        "string": json.dumps("a" * max(1, chosen.get("minLength", 1))),
    }
    if chosen.get("format") == "date-time":
        return '"2026-11-21T08:00:00Z"'
    if chosen.get("type") == "array":
        parts = chosen.get("prefixItems") or [chosen.get("items", {})] * chosen.get("minItems", 0)
        return f"[{','.join(example(document, part) for part in parts)}]"
    if chosen.get("type") == "object":
        wanted = {name: chosen["properties"][name] for name in chosen.get("required", ())}
        return _object({name: example(document, part) for name, part in wanted.items()})
    return simple.get(str(chosen.get("type")), "1")


def _object(values: Mapping[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(name)}:{raw}' for name, raw in values.items())}}}"


MARK = "\x00here\x00"


def with_value(document: Schema, data: Any, field: Field, raw: str) -> str:
    """The document with `raw` at a place; what is missing on the way there is made."""
    return in_place(marked(document, data, field), raw)


def in_place(text: str, raw: str) -> str:
    """A text that was `marked`, with `raw` at that place."""
    return text.replace(json.dumps(MARK), raw, 1)


def marked(document: Schema, data: Any, field: Field) -> str:
    """The document with a mark at a place."""
    copied = json.loads(json.dumps(data))
    parent: Any = copied
    schemas: Sequence[Schema] = (document,)
    for at, step in enumerate(field.path[:-1]):
        schemas = _inner(document, schemas, step)
        parent = _child(document, parent, step, schemas, field.path[at + 1])
    _put(parent, field.path[-1], MARK)
    return json.dumps(copied)


def _child(
    document: Schema, parent: Any, step: str | int, schemas: Sequence[Schema], below: str | int
) -> Any:
    known = parent.get(step) if isinstance(parent, dict) else (parent or [None])[0]
    fitting = dict if isinstance(below, str) else list
    if not isinstance(known, fitting):
        wanted = "object" if fitting is dict else "array"
        schema = next((item for item in schemas if item.get("type") == wanted), {})
        known = json.loads(example(document, {k: v for k, v in schema.items() if k != "default"}))
        _put(parent, step, known)
    return known


def _put(parent: Any, step: str | int, value: Any) -> None:
    if isinstance(parent, list):
        parent[:1] = [value]
    else:
        parent[step] = value


def _inner(document: Schema, schemas: Sequence[Schema], step: str | int) -> tuple[Schema, ...]:
    found: list[Schema] = []
    for schema in _choices(document, schemas):
        if isinstance(step, int):
            if schema.get("type") == "array":
                found += (schema.get("prefixItems") or [schema.get("items", {})])[:1]
        elif step in schema.get("properties", {}):
            found.append(schema["properties"][step])
        elif schema.get("type") == "object":
            found += schema.get("patternProperties", {}).values()
            if isinstance(schema.get("additionalProperties"), Mapping):
                found.append(schema["additionalProperties"])
    return tuple(_choices(document, found))


def present_value(data: Any, path: Path) -> str | None:
    """What stands at a place, as raw JSON; None: nothing."""
    for step in path:
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            return None
    return json.dumps(data)


def copy_value(source: Any, target: Any, path: Sequence[str]) -> None:
    """Let a document have at a place what another one has there, where it has that place."""
    for at, part in enumerate(path):
        step: str | int = int(part) if isinstance(source, list) and part.isdigit() else part
        try:
            source = source[step]
            if at == len(path) - 1:
                target[step] = source
            target = target[step]
        except (KeyError, IndexError, TypeError):
            return
