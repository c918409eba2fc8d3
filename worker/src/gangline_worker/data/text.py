"""Text as one array of bytes, cut into windows of `seq_len` inputs and their next bytes."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from gangline_worker.data.errors import DataError
from gangline_worker.data.order import SampleOrder
from gangline_worker.data.samples import Batch

Bytes = NDArray[np.uint8]

STDLIB = "stdlib"
_SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
_LARGEST_MAPPED_BYTES = 1 << 50


def find_files(root: Path, suffix: str) -> list[Path]:
    """Files below `root` whose name ends in `suffix`, by path; tests and packages left out."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = set(folders) - _SKIPPED_FOLDERS  # site-packages alone can hold 100,000 files
        found.extend(Path(folder, name) for name in names if name.endswith(suffix))
    return sorted(found, key=lambda path: path.parts)


def load_text(source: str, *, suffix: str = ".py", max_bytes: int = 12_000_000) -> Bytes:
    """All bytes of a source, at most `max_bytes`; the same files give the same bytes anywhere.

    `source` is `stdlib` (the Python standard library's own source, which every machine has), a
    folder, whose files are read in the order of their paths, or one file, which is mapped.

    Raises:
        DataError: there is nothing to read.
    """
    root = Path(sysconfig.get_path("stdlib")) if source == STDLIB else Path(source)
    if root.is_file():
        size = min(root.stat().st_size, max_bytes, _LARGEST_MAPPED_BYTES)
        if size:
            return np.memmap(root, dtype=np.uint8, mode="r", shape=(size,))
    chunks, total = [], 0
    for path in find_files(root, suffix) if root.is_dir() else []:
        chunk = path.read_bytes()[: max_bytes - total]
        chunks.append(chunk)
        total += len(chunk)
        if total >= max_bytes:
            break
    if not total and not root.exists():
        raise DataError(
            f"data: there is no {source!r} on this node; name a folder or file that all nodes have"
        )
    if not total:
        raise DataError(
            f"data: no text in {source!r} (files ending in {suffix!r}: data_suffix says which)"
        )
    return np.frombuffer(b"".join(chunks), dtype=np.uint8)


@dataclass(frozen=True)
class TextData:
    """Windows over a text, in the order of `SampleOrder`. Its state is one position."""

    text: Bytes
    seq_len: int
    order: SampleOrder

    @classmethod
    def of(cls, text: Bytes, *, seq_len: int, seed: int) -> TextData:
        """Cut `text` into windows that overlap by the one byte that is target and next input."""
        return cls(text, seq_len, SampleOrder((len(text) - 1) // seq_len, seed))

    @property
    def vocab_size(self) -> int:
        """Bytes are below 256."""
        return 256

    def counts(self) -> dict[str, float]:
        """Nothing is found wrong with text."""
        return {}

    def digest(self) -> str:
        """xxh3-128 of the text in hex: whether two ranks, or two attempts, read the same."""
        return xxhash.xxh3_128_hexdigest(self.text.data)

    def batch(self, position: int, size: int, rank: int, world_size: int) -> Batch:
        """A rank's part of the global batch of `size` samples at `position`."""
        windows = self.order.of_rank(position, size, rank, world_size)
        starts = windows.astype(np.int64) * self.seq_len
        rows = self.text[starts[:, None] + np.arange(self.seq_len + 1)].astype(np.int64)
        return Batch(inputs=rows[:, :-1], targets=rows[:, 1:])
