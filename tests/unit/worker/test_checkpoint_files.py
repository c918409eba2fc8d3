"""Bytes on their way to a file and back: whole, hashed and on disk, or not there."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import torch
import xxhash

from gangline_schemas.events.workers import ObjectDigest
from gangline_worker.checkpoint.background import Background
from gangline_worker.checkpoint.files import (
    WRITE_BYTES,
    CorruptCheckpoint,
    Filling,
    read_pieces,
    read_verified,
    write_filling,
    write_synced,
)
from gangline_worker.checkpoint.staging import staging


def test_a_file_is_read_as_it_was_written_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    digest = write_synced(path, memoryview(b"12345"), "x.bin")
    assert bytes(read_verified(path, digest)) == b"12345"
    for content, reason in ((b"12345x", "6 bytes, 5"), (b"12355", "xxh3"), (b"1234", "4 bytes")):
        path.write_bytes(content)
        with pytest.raises(CorruptCheckpoint, match=reason) as caught:
            read_verified(path, digest)
        assert caught.value.path == path
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_pieces_of_a_file_are_read_to_where_they_belong(tmp_path: Path) -> None:
    path, raw = tmp_path / "x.bin", bytes(range(250)) * 8000
    digest = write_synced(path, memoryview(raw), "x.bin")
    first, second = bytearray(7), bytearray(1_300_000)
    pieces = [(3, memoryview(first)), (600_000, memoryview(second))]
    read_pieces(path, digest, pieces)
    assert first == raw[3:10]
    assert second == raw[600_000:1_900_000]
    with pytest.raises(ValueError, match="begins before"):
        read_pieces(path, digest, reversed(pieces))
    path.write_bytes(raw[:-1] + b"x")
    with pytest.raises(CorruptCheckpoint, match="xxh3"):
        read_pieces(path, digest, pieces)


@pytest.mark.parametrize("size", [5 << 20, (33 << 20) + 7, 100])
@pytest.mark.parametrize("offset", [0, 64], ids=["pages", "unaligned"])
@pytest.mark.parametrize("place", ["disk", "memory"])
def test_large_files_hold_what_was_staged(
    tmp_path: Path, size: int, offset: int, place: str
) -> None:
    whole = staging(size + offset, pinned=False)
    whole.random_(generator=torch.Generator().manual_seed(1))
    data = whole.numpy().data[offset:]
    folder = tmp_path if place == "disk" else Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        path = folder / "x.bin"
        digest = write_synced(path, data, "x.bin")
        assert path.stat().st_size == size
        assert path.read_bytes() == data
        assert digest == ObjectDigest(
            key="x.bin", size_bytes=size, xxh3=xxhash.xxh3_128_hexdigest(data)
        )
    finally:
        if place == "memory":
            shutil.rmtree(folder)


def test_memory_that_the_disk_may_not_read_is_written_all_the_same(tmp_path: Path) -> None:
    """As some drivers' pinned memory; here it is the process's own secret."""
    handle = ctypes.CDLL(None).syscall(447, 0)  # memfd_secret
    if handle < 0:
        pytest.skip("no such memory here")
    os.ftruncate(handle, 2 << 20)
    data = memoryview(mmap.mmap(handle, 2 << 20))
    os.close(handle)
    data[-5:] = b"whole"
    digest = write_synced(tmp_path / "x.bin", data, "x.bin")
    assert digest.xxh3 == xxhash.xxh3_128_hexdigest(data)
    assert (tmp_path / "x.bin").read_bytes() == data


def test_the_disk_takes_what_is_there_while_the_rest_is_filled(tmp_path: Path) -> None:
    data = staging(WRITE_BYTES + 5000, pinned=False).numpy().data
    filling, path = Filling(data), tmp_path / "x.bin"
    writing = Background("write").submit(lambda: write_filling(path, filling, "x.bin"))
    data[:5] = b"first"
    filling.filled(WRITE_BYTES)
    ends = time.monotonic() + 60
    while sum(file.stat().st_size for file in tmp_path.iterdir()) < WRITE_BYTES:
        assert time.monotonic() < ends
        time.sleep(0.01)
    assert not path.exists(), "under its name it is whole"
    data[-4:] = b"last"
    filling.filled(len(data))
    assert writing.result(60).xxh3 == xxhash.xxh3_128_hexdigest(data)
    assert path.read_bytes() == data


def test_memory_that_is_never_filled_leaves_nothing(tmp_path: Path) -> None:
    filling = Filling(staging(WRITE_BYTES, pinned=False).numpy().data)
    filling.filled(WRITE_BYTES // 2)
    filling.fail(ValueError("it broke"))
    with pytest.raises(ValueError, match="it broke"):
        write_filling(tmp_path / "x.bin", filling, "x.bin")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [1000, 3 << 20], ids=["at once", "later"])
def test_a_large_file_that_does_not_fit_leaves_nothing(tmp_path: Path, limit: int) -> None:
    data = staging(40 << 20, pinned=False).numpy().data
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            write_synced(tmp_path / "x.bin", data, "x.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
