"""The first question of clickhouse-go, the client inside Grafana's ClickHouse plugin.

The client reads its answer in the Native form of a protocol revision, and every later answer in
that of the revision that it finds in this one. The engine writes Native without a revision. So
this one answer is written here, and its revision is 0.
"""

from __future__ import annotations

QUESTION = "SELECT displayName(), version(), revision(), timezone()"

_BLOCK_INFO = bytes([1, 0, 2, 0xFF, 0xFF, 0xFF, 0xFF, 0])
_USUAL_SERIALIZATION = b"\0"


def answer(name: str, version: str, time_zone: str) -> bytes:
    """One row in one block, as clients of revision 54454 and later read it."""
    row = (
        ("displayName()", "String", _text(name)),
        ("version()", "String", _text(version)),
        ("revision()", "UInt32", bytes(4)),
        ("timezone()", "String", _text(time_zone)),
    )
    columns = (
        _text(column) + _text(kind) + _USUAL_SERIALIZATION + value for column, kind, value in row
    )
    return _BLOCK_INFO + bytes([len(row), 1]) + b"".join(columns)


def _text(text: str) -> bytes:
    """A String of at most 127 bytes: its length takes one byte."""
    encoded = text.encode()[:127]
    return bytes([len(encoded)]) + encoded
