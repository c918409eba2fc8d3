"""The answer to clickhouse-go's first question, read as that client reads it."""

from __future__ import annotations

import struct

from gangline_tracker import hello


class Reader:
    def __init__(self, body: bytes) -> None:
        self.body = body

    def take(self, size: int) -> bytes:
        taken, self.body = self.body[:size], self.body[size:]
        assert len(taken) == size
        return taken

    def text(self) -> str:
        return self.take(self.take(1)[0]).decode()


def test_the_answer_is_one_row_of_a_block_with_a_revision() -> None:
    body = Reader(hello.answer("gangline", "26.9.1.1", "UTC"))
    assert body.take(3) == bytes([1, 0, 2])
    assert struct.unpack("<i", body.take(4)) == (-1,)
    assert body.take(3) == bytes([0, 4, 1]), "end of the block's info, columns, rows"
    found = {}
    for _ in range(4):
        name, kind = body.text(), body.text()
        assert body.take(1) == b"\0", "no serialization of its own"
        found[name] = body.text() if kind == "String" else struct.unpack("<I", body.take(4))[0]
    assert not body.body
    assert found == {
        "displayName()": "gangline", "version()": "26.9.1.1", "revision()": 0, "timezone()": "UTC",
    }  # fmt: skip
    assert all(name in hello.QUESTION for name in found)
