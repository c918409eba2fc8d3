"""The filter language's text as words and comparisons: MLflow's language, parsed. Pure.

    comparison (AND comparison)*
    comparison: key operator value | key [NOT] IN (value, ...) | key IS [NOT] NULL
    key: [params | metrics | tags | attributes] . name, or the name of an attribute alone

A name with other characters than letters, digits, `_`, `-`, `.` and `/` stands in backticks or
double quotes. Operators: = != < <= > >= LIKE ILIKE. Values: 'text', "text" or a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

MAX_CHARS = 6000
MAX_COMPARISONS = 50
MAX_LIST = 1000
MAX_ORDER = 5
Kind = Literal["param", "metric", "tag", "attribute"]
Value = str | float
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "LIKE", "ILIKE", "IN", "NOT IN")
_KINDS: dict[str, Kind] = {
    "param": "param", "params": "param", "parameter": "param", "parameters": "param",
    "metric": "metric", "metrics": "metric", "tag": "tag", "tags": "tag",
    "attribute": "attribute", "attributes": "attribute", "attr": "attribute", "run": "attribute",
}  # fmt: skip
_WORDS = re.compile(
    r"""\s*+(?:
    (?P<number>[+-]?(?:\d++(?:\.\d*+)?+|\.\d++)(?:[eE][+-]?\d++)?+(?![\w.]))
  | (?P<text>'(?:[^']|'')*'|"[^"]*"|`[^`]*`)
  | (?P<operator><=|>=|!=|<>|==|[=<>(),.])
  | (?P<name>[A-Za-z_][\w/-]*)
    )""",
    re.VERBOSE | re.ASCII,
)


class FilterError(ValueError):
    """The text is not a filter or an order; the message says where and what is known."""

    field = "where"
    """The parameter that the text was given as."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key to compare or to order by; `at` is its place in the text, from 1."""

    kind: Kind
    name: str
    at: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """`value` is a list for IN and NOT IN, and None for IS NULL (operator =) and IS NOT NULL."""

    key: Key
    operator: str
    value: Value | tuple[Value, ...] | None


@dataclass(frozen=True, slots=True)
class _Word:
    kind: str
    text: str
    at: int


class _Reader:
    """Words of a text, one after the other."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise FilterError(f"holds {len(text):,} characters; at most {MAX_CHARS:,}")
        self._words = _split(text)
        self._next = 0

    def peek(self) -> _Word:
        return self._words[self._next]

    def take(self) -> _Word:
        word = self._words[self._next]
        self._next = min(self._next + 1, len(self._words) - 1)
        return word

    def accept(self, *texts: str) -> bool:
        """Take these words if they come next."""
        following = self._words[self._next : self._next + len(texts)]
        if [word.text.upper() for word in following if word.kind != "text"] != [*texts]:
            return False
        self._next += len(texts)
        return True

    def fail(self, expected: str) -> NoReturn:
        word = self.peek()
        found = f"{word.text[:40]!r}" if word.kind != "end" else "the end"
        raise FilterError(f"at character {word.at}: expected {expected}, found {found}")


def _split(text: str) -> list[_Word]:
    words, at = [], 0
    while text[at:].strip():
        found = _WORDS.match(text, at)
        if found is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            opened = text[place] in "'\"`"
            what = "this quotation has no end" if opened else f"{text[place]!r} has no meaning here"
            raise FilterError(f"at character {place + 1}: {what}")
        kind = found.lastgroup or ""
        words.append(_Word(kind, found[kind], found.start(kind) + 1))
        at = found.end()
    return [*words, _Word("end", "", len(text) + 1)]


def read_filter(text: str) -> tuple[Comparison, ...]:
    """The comparisons of a filter, all of which must hold. Raises FilterError."""
    reader, found = _Reader(text), []
    if reader.peek().kind == "end":
        return ()
    while True:
        found.append(_comparison(reader))
        if len(found) > MAX_COMPARISONS:
            raise FilterError(f"has more than {MAX_COMPARISONS} comparisons")
        if reader.peek().kind == "end":
            return tuple(found)
        if not reader.accept("AND"):
            reader.fail("AND or the end (there is no OR)")


def read_order(text: str) -> tuple[Key, bool]:
    """A key and whether its greatest value comes first. Raises FilterError."""
    reader = _Reader(text)
    key = _key(reader)
    down = reader.accept("DESC")
    if not down:
        reader.accept("ASC")
    if reader.peek().kind != "end":
        reader.fail("ASC, DESC or the end")
    return key, down


def _comparison(reader: _Reader) -> Comparison:
    key = _key(reader)
    if reader.accept("IS", "NOT", "NULL"):
        return Comparison(key, "!=", None)
    if reader.accept("IS", "NULL"):
        return Comparison(key, "=", None)
    for words in (("IN",), ("NOT", "IN")):
        if reader.accept(*words):
            return Comparison(key, " ".join(words), _list(reader))
    word = reader.peek()
    operator = {"==": "=", "<>": "!="}.get(word.text, word.text.upper())
    if word.kind == "text" or operator not in OPERATORS:
        reader.fail(f"one of {', '.join(OPERATORS)}, IS NULL, IS NOT NULL")
    reader.take()
    return Comparison(key, operator, _value(reader))


def _key(reader: _Reader) -> Key:
    word = reader.peek()
    if word.kind not in {"name", "text"} or word.text.startswith("'"):
        reader.fail("params.NAME, metrics.NAME, tags.NAME or the name of an attribute")
    reader.take()
    if word.kind == "text" or not reader.accept("."):
        return Key("attribute", _unquoted(word), word.at)
    kind = _KINDS.get(word.text.lower())
    if kind is None:
        raise FilterError(
            f"at character {word.at}: {word.text[:40]!r} is not known; write params, metrics, tags "
            "or attributes before the dot"
        )
    parts = [_name(reader)]
    while reader.accept("."):
        parts.append(_name(reader))
    return Key(kind, ".".join(parts), word.at)


def _name(reader: _Reader) -> str:
    word = reader.peek()
    if word.kind not in {"name", "text"} or word.text.startswith("'"):
        reader.fail("a name (in backticks if it has other characters than letters)")
    return _unquoted(reader.take())


def _list(reader: _Reader) -> tuple[Value, ...]:
    if not reader.accept("("):
        reader.fail("a list in parentheses")
    found = [_value(reader)]
    while reader.accept(","):
        found.append(_value(reader))
        if len(found) > MAX_LIST:
            raise FilterError(f"has a list of more than {MAX_LIST:,} values")
    if not reader.accept(")"):
        reader.fail("',' or ')'")
    return tuple(found)


def _value(reader: _Reader) -> Value:
    word = reader.peek()
    if word.kind == "number":
        number = float(reader.take().text)
        if not math.isfinite(number):
            raise FilterError(f"at character {word.at}: {word.text[:40]} is too large a number")
        return number
    if word.kind != "text" or word.text.startswith("`"):
        reader.fail("a number, or a text in quotes")
    return _unquoted(reader.take())


def _unquoted(word: _Word) -> str:
    if word.kind != "text":
        return word.text
    inner = word.text[1:-1]
    return inner.replace("''", "'") if word.text[0] == "'" else inner


def order_of(texts: Sequence[str]) -> tuple[tuple[Key, bool], ...]:
    """Several keys, the most important first. Raises FilterError."""
    if len(texts) > MAX_ORDER:
        raise FilterError(f"at most {MAX_ORDER} keys")
    return tuple(read_order(text) for text in texts)
