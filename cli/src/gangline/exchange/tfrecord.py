"""TFRecord files: length, payload and their masked CRC-32C checksums.

https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


class DamagedError(Exception):
    """A checksum is wrong: nothing behind it can be read."""


class CutError(Exception):
    """The file ends inside of a record, as after a kill."""


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return tuple(found)


_TABLE = _table()


def masked_crc32c(data: bytes) -> int:
    """The checksum that TFRecord uses."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def records(file: BinaryIO) -> Iterator[bytes]:
    """The payloads. Raises DamagedError, CutError."""
    size = os.fstat(file.fileno()).st_size
    while head := file.read(12):
        if len(head) < 12:
            raise CutError
        length, checksum = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != checksum:
            raise DamagedError("the length of a record")
        if length + 4 > size - file.tell():
            raise CutError
        data, tail = file.read(length), file.read(4)
        if struct.unpack("<I", tail) != (masked_crc32c(data),):
            raise DamagedError("a record")
        yield data


def record(data: bytes) -> bytes:
    """One record with its checksums."""
    head = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (head, data)]
    return head + checksums[0] + data + checksums[1]
