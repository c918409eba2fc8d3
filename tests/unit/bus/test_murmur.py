"""The partitioner against the vectors in Apache Kafka's own UtilsTest."""

from __future__ import annotations

import pytest

from gangline_bus.murmur import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_published_vectors(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


def test_no_key_goes_to_the_first_partition() -> None:
    assert partition_of(None, 4) == 0
