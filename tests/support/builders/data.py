"""Small token snapshots for tests: shards of 512 tokens, blocks of 256 bytes (128 tokens)."""

from __future__ import annotations

import random
from pathlib import Path

from gangline_worker.data.inputs import find_inputs
from gangline_worker.data.manifest import Manifest
from gangline_worker.data.prepare import Progress, Sources, prepare
from gangline_worker.data.tokenizer import ByteTokenizer

SHARD_TOKENS, BLOCK_BYTES = 512, 256


def text_bytes(size: int, seed: int = 1) -> bytes:
    """Bytes without 0, so that only documents end by it."""
    return bytes(random.Random(seed).choices(range(1, 256), k=size))


def small_sources(inputs: list[Path], out: Path, **changed: object) -> Sources:
    settings: dict[str, object] = {
        "corpus": "corpus",
        "tokenizer": ByteTokenizer().info,
        "field": "text",
        "shard_tokens": SHARD_TOKENS,
        "block_bytes": BLOCK_BYTES,
        "inputs": find_inputs(inputs, out=out),
    }
    return Sources.model_validate(settings | changed)


def small_snapshot(
    folder: Path, size: int = 5000, seed: int = 1, **changed: object
) -> tuple[Path, Manifest, bytes]:
    """A snapshot of one document: its folder, its manifest and its tokens as bytes."""
    text = folder / "input.txt"
    text.write_bytes(text_bytes(size, seed))
    out = folder / "snapshot"
    sources = small_sources([text], out, **changed)
    manifest = prepare(out, sources, ByteTokenizer(), lambda _: None)
    return out, manifest, text.read_bytes() + b"\0"


def flip(path: Path, at: int) -> None:
    """Turn one bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)


def quiet(_: Progress) -> None:
    """Show no progress."""
