"""A state as lines of JSON, exactly: a loaded state equals the dumped one, to the last digit.

For states that are dataclasses whose fields are dicts or values. Two things differ from pydantic:
times come back in `datetime.UTC`, and a dict with keys that are not strings is a list of pairs.
Dicts keep their order.

A state has a format version. Lines of an older version pass its converters, one version after the
other. A converter takes a field's name and the JSON value of one line. It gives both in the next
version's form, or None to drop the line.

Each line is `field JSON`, with at most `_CHUNK` entries of a dict. Other threads run between two
lines, so a cycle of the loop never waits for a whole state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import islice
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import SchemaSerializer, SchemaValidator

StateT = TypeVar("StateT")
Facts = dict[str, Any]
"""The facts of a state by the names of its fields."""
Converter = Callable[[str, Any], tuple[str, Any] | None]
"""One line of a version in the form of the next one."""
_CHUNK = 500
_WORDS = frozenset(
    {"title", "description", "examples", "pattern", "multipleOf"}
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minLength", "maxLength", "minItems", "maxItems"}
)


class DataclassCodec(Generic[StateT]):
    """Implements `SnapshotCodec` for the states that `initial` begins.

    `left_out` are the fields that are derived or soft; `rebuild` fills what is derived, in place.
    `derived` names what of it the fingerprint covers beside the facts.
    `mutable` says how to copy the values of a field that later events change in place.
    `converters` lead from a version to the next one (docs/guides/upgrades.md).
    """

    def __init__(
        self,
        initial: Callable[[], StateT],
        *,
        version: int = 1,
        converters: Mapping[int, Converter] | None = None,
        left_out: Iterable[str] = (),
        rebuild: Callable[[StateT], None] = lambda _: None,
        derived: Callable[[StateT], Iterable[str]] = lambda _: (),
        mutable: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        self.version = version
        self._converters = dict(converters or {})
        self._initial = initial
        self._rebuild = rebuild
        self._derived = derived
        self._mutable = dict(mutable or {})
        state: Any = type(initial())
        self._fields = _fields_of(state, frozenset(left_out))

    def copy(self, state: StateT) -> Facts:
        """The facts as they are now, which later events do not change."""
        facts: Facts = {}
        for name, field in self._fields.items():
            held, value = getattr(state, name), self._mutable.get(name)
            if isinstance(field, _Value):
                facts[name] = held
            else:
                copied = held if value is None else {k: value(v) for k, v in held.items()}
                facts[name] = dict(copied)
        return facts

    def dump(self, facts: Facts) -> Iterator[bytes]:
        """The facts, a line at a time."""
        for name, field in self._fields.items():
            for part in field.write(facts[name]):
                yield b"%s %s\n" % (name.encode(), part)

    def fingerprint(self, state: StateT) -> str:
        """sha256 in hex of all facts, in their order, and of `derived`.

        Equal for a replay of the same log and for a state that a snapshot holds.
        """
        digest = hashlib.sha256()
        for name, field in self._fields.items():
            for part in field.write(getattr(state, name)):
                digest.update(b"%s %s\n" % (name.encode(), part))
        for line in self._derived(state):
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    @cached_property
    def form(self) -> str:
        """sha256 of the names and types of all facts: another one needs another version."""
        forms = {name: field.form() for name, field in self._fields.items()}
        return hashlib.sha256(json.dumps(forms, sort_keys=True).encode()).hexdigest()

    def reads(self, version: int, form: str) -> bool:
        """Whether lines of this version and form can be loaded."""
        if version == self.version:
            return form == self.form
        return version < self.version and all(
            step in self._converters for step in range(version, self.version)
        )

    def load(self, lines: Iterable[bytes], version: int | None = None) -> StateT:
        """The state of these lines, with what is derived. Raises ValueError."""
        state = self._initial()
        if version is not None and version != self.version:
            lines = self._converted(lines, version)
        for line in lines:
            head, _, raw = line.partition(b" ")
            name = head.decode()
            field = self._fields.get(name)
            if field is None:
                raise ValueError(f"{name[:64]!r} is not a field of {type(state).__name__}")
            read = field.read(raw)
            if isinstance(field, _Value):
                setattr(state, name, read)
            else:
                getattr(state, name).update(read)
        self._rebuild(state)
        return state

    def _converted(self, lines: Iterable[bytes], version: int) -> Iterator[bytes]:
        steps = [self._converters[step] for step in range(version, self.version)]
        for line in lines:
            head, _, raw = line.partition(b" ")
            entry: tuple[str, Any] | None = (head.decode(), json.loads(raw))
            for step in steps:
                entry = step(*entry) if entry is not None else None
            if entry is not None:
                yield b"%s %s\n" % (entry[0].encode(), json.dumps(entry[1]).encode())


class _Json:
    """Reads and writes values of one type."""

    def __init__(self, kind: Any) -> None:
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        schema = _exact(self._adapter.core_schema)
        self._validator = SchemaValidator(schema)
        self._serializer = SchemaSerializer(schema)

    def to_json(self, value: Any) -> bytes:
        return self._serializer.to_json(value)

    def form(self) -> Any:
        """The JSON schema without words and bounds: what a stored value looks like."""
        return _without(self._adapter.json_schema(mode="serialization"), _WORDS)

    def read(self, raw: bytes) -> Any:
        return self._validator.validate_json(raw)


class _Entries(_Json):
    """A dict, some pairs a line."""

    def __init__(self, hint: Any) -> None:
        key, value = get_args(hint)
        super().__init__(list[tuple[key, value]])  # type: ignore[valid-type]

    def write(self, held: dict[Any, Any]) -> Iterator[bytes]:
        items = iter(held.items())
        while chunk := list(islice(items, _CHUNK)):
            yield self.to_json(chunk)


class _Value(_Json):
    """An immutable value, on one line."""

    def __init__(self, name: str, hint: Any) -> None:
        try:
            super().__init__(hint)
        except PydanticSchemaGenerationError:
            raise TypeError(f"{name}: {hint} cannot be kept; leave it out and rebuild it") from None

    def write(self, held: Any) -> Iterator[bytes]:
        yield self.to_json(held)


@cache
def _fields_of(state: type, absent: frozenset[str]) -> Mapping[str, _Entries | _Value]:
    """How each field but these is read and written. It costs 10 ms, so once for each type."""
    return {
        name: _Entries(hint) if get_origin(hint) is dict else _Value(name, hint)
        for name, hint in get_type_hints(state, include_extras=True).items()
        if name not in absent
    }


def _without(schema: Any, keys: frozenset[str], *, names: bool = False) -> Any:
    """The schema without these keywords; `names`: the keys of this dict are names of fields."""
    if isinstance(schema, list):
        return [_without(item, keys) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without(value, keys, names=not names and key in {"properties", "$defs"})
        for key, value in schema.items()
        if names or key not in keys
    }


def _exact(schema: Any) -> Any:
    """The core schema with the two changes of the module's docstring; models have neither need."""
    if isinstance(schema, list | tuple):
        return type(schema)(_exact(item) for item in schema)
    if not isinstance(schema, dict) or schema.get("type") == "model":
        return schema
    found = {name: _exact(part) for name, part in schema.items()}
    if found.get("type") == "datetime":
        return _then(_to_utc, found)
    if found.get("type") == "dict" and found["keys_schema"].get("type") != "str":
        pair = {"type": "tuple", "items_schema": [found["keys_schema"], found["values_schema"]]}
        pairs = {"type": "list", "items_schema": pair}
        plain = {"type": "function-plain", "function": _pairs, "return_schema": pairs}
        return {**_then(dict, pairs), "serialization": plain}
    return found


def unchanged(name: str, value: Any) -> tuple[str, Any]:
    """The converter of a version to which the next one only added fields."""
    return name, value


def _then(function: Callable[[Any], Any], schema: dict[str, Any]) -> dict[str, Any]:
    after = {"type": "no-info", "function": function}
    return {"type": "function-after", "function": after, "schema": schema}


def _to_utc(value: datetime) -> datetime:
    return value.astimezone(UTC)


def _pairs(held: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(held.items())
