"""The wire format of protocol buffers: fields by number, for the few messages that are needed.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _I64, _LENGTH, _I32 = 0, 1, 2, 5
Value = int | bytes
"""A whole number, or the bytes of a text, a message or a number with a point."""


class NotProtobufError(ValueError):
    """The bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field in order. Raises NotProtobufError."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _LENGTH:
            size, at = _varint(data, at)
        elif kind in {_I64, _I32}:
            size = 8 if kind == _I64 else 4
        else:
            raise NotProtobufError(f"wire type {kind}")
        if at + size > len(data):
            raise NotProtobufError("a field is cut")
        yield tag >> 3, data[at : at + size]
        at += size


def message(data: Value | None) -> dict[int, list[Value]]:
    """A message's values by field. An absent message has none."""
    found: dict[int, list[Value]] = {}
    for number, value in fields(data) if isinstance(data, bytes) else ():
        found.setdefault(number, []).append(value)
    return found


def last(found: dict[int, list[Value]], number: int) -> Value | None:
    """The value that counts of a field that is not repeated."""
    return found[number][-1] if number in found else None


def raw(found: dict[int, list[Value]], number: int) -> bytes:
    """Its bytes; none where it is absent or of another type."""
    value = last(found, number)
    return value if isinstance(value, bytes) else b""


def text(found: dict[int, list[Value]], number: int) -> str:
    """It as text."""
    return raw(found, number).decode("utf-8", "replace")


def texts(found: dict[int, list[Value]], number: int) -> list[str]:
    """The texts of a repeated field."""
    return [
        value.decode("utf-8", "replace")
        for value in found.get(number, ())
        if isinstance(value, bytes)
    ]


def integer(found: dict[int, list[Value]], number: int) -> int:
    """It as an int64; 0 where it is absent."""
    value = last(found, number)
    number_ = value if isinstance(value, int) else 0
    return number_ - (1 << 64) if number_ >= 1 << 63 else number_


def double(data: bytes) -> float:
    """A number with a point, of 4 or 8 bytes. Raises NotProtobufError for another length."""
    if len(data) not in {4, 8}:
        raise NotProtobufError("a number has another length")
    (value,) = struct.unpack("<d" if len(data) == 8 else "<f", data)
    return float(value)


def encoded(
    number: int,
    value: int | float | str | bytes,  # noqa: PYI041 - the kinds differ on the wire
    *,
    single: bool = False,
) -> bytes:
    """One field: an int64, a double (`single`: a float), a text or a message."""
    if isinstance(value, float):
        kind, form = (_I32, "<f") if single else (_I64, "<d")
        return _written(number << 3 | kind) + struct.pack(form, value)
    if isinstance(value, int):
        return _written(number << 3 | _VARINT) + _written(value & (1 << 64) - 1)
    content = value.encode() if isinstance(value, str) else value
    return _written(number << 3 | _LENGTH) + _written(len(content)) + content


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise NotProtobufError("a number is cut")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def _written(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
