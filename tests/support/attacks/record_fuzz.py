"""Records as no client should write them: golden examples with an error in them, and noise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from gangline_bus.ports import OutRecord
from gangline_schemas.catalog import Topic, catalog, event_types

EXAMPLES = Path(__file__).parents[3] / "schemas" / "examples"
TIME = b"2026-11-21T08:00:00Z"
BIG = "@big@"
"""Stands for an integer of 400 digits, which Python's json would refuse to read back."""
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, 1e308, -1e308, 5e-324, -0.0, 0.5, BIG,
    "", " ", "x", "x" * 70, "y" * 20_000, "NaN", "\ud800", "\0", "2026-11-21T08:00:00Z",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "../..", [], {}, [None], {"": None},
    float("nan"), float("inf"),
)  # fmt: skip
NAMES = (b"ce_id", b"ce_source", b"ce_type", b"ce_subject", b"ce_time", b"traceparent", b"x")
TEXTS = (
    b"", b"\xff\xfe", b"x" * 1025, b"0001-01-01T00:00:00+14:00", b"9999-12-31T23:59:59-14:00",
    b"1.0", b"a\x00b", "é".encode(), b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01",
)  # fmt: skip
Headers = list[tuple[str, bytes]]


@cache
def examples() -> dict[str, str]:
    """The golden example of each type, as JSON."""
    return {name: (EXAMPLES / f"{name}.json").read_text(encoding="utf-8") for name in event_types()}


def records(topic: Topic, name: str, count: int, random: Random) -> Iterator[OutRecord]:
    """So many records for a topic; about a third is valid."""
    own = sorted(catalog()[topic].types)
    for number in range(count):
        kind = random.choice(own)
        data = json.loads(examples()[kind])
        headers: Headers = [
            ("ce_specversion", b"1.0"),
            ("ce_id", f"fuzz-{number}".encode()),
            ("ce_source", b"/fuzz"),
            ("ce_type", kind.encode()),
            ("ce_subject", _subject(data).encode()),
            ("ce_time", TIME),
        ]
        value = _written(data)
        for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
            data, headers, value = random.choice(CHANGES)(data, headers, value, random)
        yield OutRecord(name, random.choice((b"k", None, b"\xff")), value, tuple(headers))


def _subject(data: dict[str, Any]) -> str:
    return str(data.get("job_id") or data.get("node_id") or "s")


def _written(data: Any) -> bytes:
    text = json.dumps(data).replace(f'"{BIG}"', "9" * 400)
    return text.encode(errors="surrogatepass")


Parts = tuple[Any, Headers, bytes]
Change = Callable[[Any, Headers, bytes, Random], Parts]


def _value(random: Random) -> Any:
    """One of `VALUES` that later changes may fill."""
    return deepcopy(random.choice(VALUES))


def _leaf(data: Any, headers: Headers, _: bytes, random: Random) -> Parts:
    """Another value somewhere in the data."""
    holders = list(_holders(data))
    if holders:
        holder, key = random.choice(holders)
        holder[key] = _value(random)
    return data, headers, _written(data)


def _without(data: Any, headers: Headers, _: bytes, random: Random) -> Parts:
    holders = [(h, k) for h, k in _holders(data) if isinstance(h, dict)]
    if holders:
        holder, key = random.choice(holders)
        del holder[key]
    return data, headers, _written(data)


def _more(data: Any, headers: Headers, _: bytes, random: Random) -> Parts:
    if isinstance(data, dict):
        data["k" * random.choice((1, 5000))] = _value(random)
    return data, headers, _written(data)


def _deep(data: Any, headers: Headers, _: bytes, random: Random) -> Parts:
    """Brackets within brackets, where a value stood."""
    depth = random.choice((50, 190, 250, 3000))
    text = _written(data).decode(errors="replace").rstrip("}")
    return data, headers, f'{text}, "deep": {"[" * depth}{"]" * depth}}}'.encode()


def _header(data: Any, headers: Headers, value: bytes, random: Random) -> Parts:
    name, text = random.choice(NAMES).decode(), random.choice(TEXTS)
    return data, [(n, text if n == name else v) for n, v in headers], value


def _header_more(data: Any, headers: Headers, value: bytes, random: Random) -> Parts:
    name = random.choice(("CE_ID", "ce_type", "ce_ganglineseq", "ce_ganglineinputs", "n" * 300))
    return data, [*headers, (name, random.choice(TEXTS))] * random.choice((1, 1, 20)), value


def _header_less(data: Any, headers: Headers, value: bytes, random: Random) -> Parts:
    gone = random.randrange(len(headers)) if headers else 0
    return data, headers[:gone] + headers[gone + 1 :], value


def _foreign(data: Any, headers: Headers, value: bytes, random: Random) -> Parts:
    """A type of any topic, with this data or its own."""
    kind = random.choice(sorted(event_types()))
    headers = [(n, kind.encode() if n == "ce_type" else v) for n, v in headers]
    if random.random() < 0.5:
        data = json.loads(examples()[kind])
        value = _written(data)
    return data, headers, value


def _torn(data: Any, headers: Headers, value: bytes, random: Random) -> Parts:
    at = random.randrange(len(value) + 1)
    noise = random.choice((b"", b"\xff", b"\x00" * 9, b"}", b"[" * 5000, random.randbytes(40)))
    return data, headers, value[:at] + noise + value[at + random.choice((0, 1, 10**6)) :]


CHANGES: tuple[Change, ...] = (
    _leaf, _leaf, _leaf, _leaf, _without, _more, _deep, _header, _header_more, _header_less,
    _foreign, _torn,
)  # fmt: skip


def _holders(data: Any) -> Iterator[tuple[Any, Any]]:
    """Each place of a value: what holds it, and its key or index there."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        pairs = list(data.items())
    elif isinstance(data, list):
        pairs = list(enumerate(data))
    for key, item in pairs:
        yield data, key
        yield from _holders(item)
