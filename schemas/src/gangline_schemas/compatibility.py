"""Whether a type may be published again: a new JSON Schema must accept all that the old one did.

Producers of other systems write last year's messages, and our logs are kept for ever. So a change
breaks when an old, valid message would be refused or would lose a field. Adding an optional field,
a type, an enum value, or widening a limit is fine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

_NARROWER_WHEN_HIGHER = (
    "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties",
)  # fmt: skip
_NARROWER_WHEN_LOWER = (
    "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties",
)  # fmt: skip


def breaking_changes(old: Mapping[str, Schema], new: Mapping[str, Schema]) -> list[str]:
    """The breaking changes between two sets of schemas by published type, one sentence each."""
    found = [f"{name}: the type was removed" for name in sorted(old.keys() - new.keys())]
    for name in sorted(old.keys() & new.keys()):
        found += _Comparison(old[name], new[name]).compare(old[name], new[name], name)
    return found


class _Comparison:
    """Two schema documents; references are looked up in the document they stand in."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old = old
        self._new = new
        self._seen: set[tuple[str, str]] = set()

    def compare(self, old: Schema, new: Schema, where: str) -> list[str]:
        """Breaking changes between two places of the documents."""
        pair = (str(old.get("$ref")), str(new.get("$ref")))
        if "$ref" in old and "$ref" in new:
            if pair in self._seen:
                return []
            self._seen.add(pair)
        old, new = _resolve(old, self._old), _resolve(new, self._new)
        return [
            *self._variants(old, new, where),
            *self._values(old, new, where),
            *self._properties(old, new, where),
            *self._items(old, new, where),
        ]

    def _variants(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        for key in ("anyOf", "oneOf"):
            for variant in old.get(key, ()):
                choices = new.get(key, [new])
                if not any(self._accepts(variant, choice, where) for choice in choices):
                    yield f"{where}: no longer accepts {_shown(variant)}"
        if not any(key in old for key in ("anyOf", "oneOf")):
            for key in ("anyOf", "oneOf"):
                choices = new.get(key, ())
                if choices and not any(self._accepts(old, choice, where) for choice in choices):
                    yield f"{where}: no longer accepts {_shown(old)}"

    def _accepts(self, old: Schema, new: Schema, where: str) -> bool:
        return not _Comparison(self._old, self._new).compare(old, new, where)

    def _values(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        types = (old.get("type"), new.get("type"))
        if None not in types and types[0] != types[1] and types != ("integer", "number"):
            yield f"{where}: the type changed from {types[0]} to {types[1]}"
        if "enum" in new or "const" in new:
            allowed = new.get("enum", [new.get("const")])
            gone = [item for item in old.get("enum", [old.get("const")]) if item not in allowed]
            if gone:
                yield f"{where}: no longer accepts {gone}"
        if new.get("pattern") is not None and new.get("pattern") != old.get("pattern"):
            yield f"{where}: the pattern changed to {new['pattern']}"
        for key in _NARROWER_WHEN_HIGHER:
            if key in new and new[key] > old.get(key, float("-inf")):
                yield f"{where}: {key} rose to {new[key]}"
        for key in _NARROWER_WHEN_LOWER:
            if key in new and new[key] < old.get(key, float("inf")):
                yield f"{where}: {key} fell to {new[key]}"

    def _properties(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in sorted(before.keys() - after.keys()):
            yield f"{where}.{name}: the field was removed"
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{where}.{name}: the field became required"
        for name in sorted(before.keys() & after.keys()):
            yield from self.compare(before[name], after[name], f"{where}.{name}")

    def _items(self, old: Schema, new: Schema, where: str) -> Iterator[str]:
        for key in ("items", "additionalProperties"):
            before, after = old.get(key), new.get(key)
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                yield from self.compare(before, after, f"{where}[]")


def _resolve(schema: Schema, document: Schema) -> Schema:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Schema = document["$defs"][reference.removeprefix("#/$defs/")]
    return found


def _shown(schema: Schema) -> str:
    return str(schema.get("type") or schema.get("$ref") or schema.get("enum") or dict(schema))
