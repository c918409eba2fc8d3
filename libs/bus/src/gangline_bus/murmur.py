"""The partition of a key as Java's producer chooses it: murmur2, so that all clients agree."""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (seed 0x9747b28c); org.apache.kafka.common.utils.Utils.murmur2."""
    length = len(data)
    digest = (0x9747B28C ^ length) & _MASK
    whole = length // 4 * 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little")
        word = word * _M & _MASK
        word ^= word >> 24
        word = word * _M & _MASK
        digest = (digest * _M & _MASK) ^ word
    tail = data[whole:]
    if tail:
        digest ^= int.from_bytes(tail, "little")
        digest = digest * _M & _MASK
    digest ^= digest >> 13
    digest = digest * _M & _MASK
    return digest ^ (digest >> 15)


def partition_of(key: bytes | None, partitions: int) -> int:
    """The partition that every record of this key goes to; partition 0 without a key."""
    if key is None:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions
