"""Reading 64 M shuffled tokens: verified shards against a plain memory map, pass by pass.

`python tests/bench/run.py --only loader`. All give int64 batches of the same windows. The plain one
is `numpy.memmap`, knows its shuffled list beforehand and checks nothing; the bare one is the same
without the subclass, of which each slice costs a microsecond. Ours computes its order as it goes
and looks up each block; its first pass verifies every block. Passes take turns and are counted in
CPU time, so that what else runs on the machine matters little.

Grain is compared as well where it is installed, which the locked packages leave out (ADR 11):
`uv pip install --target FOLDER grain`, and GANGLINE_BENCH_GRAIN=FOLDER. It shuffles and batches the
windows of the same plain map, asked by index in the same thread.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import Context, Result, scratch
from numpy.typing import NDArray

from gangline_storage.durable import replace_file
from gangline_worker.data.inputs import find_inputs
from gangline_worker.data.prepare import Sources, prepare
from gangline_worker.data.source import folder_snapshot
from gangline_worker.data.tokenizer import ByteTokenizer
from gangline_worker.data.tokens import TokenData, TokenReader

TOKENS = 64_000_000
SEQ_LEN, BATCH = 1024, 64
SHARD_BYTES, BLOCK_BYTES = 32 << 20, 1 << 20  # four shards, as a large corpus has many


def make(folder: Path) -> Path:
    """A snapshot of random bytes."""
    text = folder / "text"
    text.mkdir()
    generator = np.random.default_rng(1)
    for part in range(4):
        size = TOKENS // 4 - 1
        generator.integers(1, 256, size, dtype=np.uint8).tofile(text / f"{part}.txt")
    out, tokenizer = folder / "snapshot", ByteTokenizer()
    sources = Sources(
        corpus="bench",
        tokenizer=tokenizer.info,
        field="text",
        shard_tokens=SHARD_BYTES // 2,
        block_bytes=BLOCK_BYTES,
        inputs=find_inputs([text], out=out),
    )
    prepare(out, sources, tokenizer, lambda _: None)
    return out


def ours_s(data: TokenData, epoch: int, batches: int) -> float:
    """CPU seconds of one pass."""
    begin = epoch * data.order.n
    started = time.thread_time()
    for index in range(batches):
        batch = data.batch(begin + index * BATCH, BATCH, 0, 1)  # noqa: F841 -- held as in training
    return time.thread_time() - started


def plain_s(tokens: NDArray[np.uint16], windows: list[int], batches: int) -> float:
    """CPU seconds of one pass over these windows, nothing checked."""
    started = time.thread_time()
    for index in range(batches):
        rows = np.empty((BATCH, SEQ_LEN + 1), dtype=np.int64)
        chosen = windows[index * BATCH : (index + 1) * BATCH]
        for row, window in zip(rows, chosen, strict=True):
            row[:] = tokens[window * SEQ_LEN : window * SEQ_LEN + SEQ_LEN + 1]
    return time.thread_time() - started


class Windows:
    """The windows of the plain map, as Grain asks for them."""

    def __init__(self, tokens: NDArray[np.uint16]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // SEQ_LEN

    def __getitem__(self, window: int) -> NDArray[np.int64]:
        found = self._tokens[window * SEQ_LEN : window * SEQ_LEN + SEQ_LEN + 1]
        return found.astype(np.int64)


def grain_batches(tokens: NDArray[np.uint16]) -> Sequence[Any]:
    """Grain's shuffled batches of these tokens; none where Grain is not installed."""
    if folder := os.environ.get("GANGLINE_BENCH_GRAIN"):
        sys.path.append(folder)  # last: what it brings along must not replace what is installed
    try:
        grain: Any = importlib.import_module("grain")
    except ImportError:
        return ()
    batches: Sequence[Any] = (
        grain.MapDataset.source(Windows(tokens)).shuffle(seed=1).batch(BATCH, drop_remainder=True)
    )
    return batches


def grain_s(batches: Sequence[Any]) -> float:
    """CPU seconds of one pass by Grain."""
    started = time.thread_time()
    for index in range(len(batches)):
        batch = batches[index]  # noqa: F841 -- held as in training
    return time.thread_time() - started


def run(context: Context) -> list[Result]:
    """Tokens a second of the first pass and the later ones, and their ratio to a plain map."""
    with scratch() as folder:
        out = make(folder)
        whole = folder / "whole.tok"
        # Written as the shards are: how a file was written decides how fast its pages are read.
        replace_file(whole, [shard.read_bytes() for shard in sorted(out.glob("*.tok"))])
        plain = np.memmap(whole, dtype="<u2", mode="r")
        data = TokenData(
            TokenReader(
                folder_snapshot(out), max_damaged=0, complain=lambda found: context.say(str(found))
            ),
            seq_len=SEQ_LEN,
            seed=1,
        )
        batches = data.order.n // BATCH
        mtokens = batches * BATCH * SEQ_LEN / 1e6
        plain_s(plain, data.order.at(0, data.order.n).tolist(), batches)
        first = mtokens / ours_s(data, 0, batches)
        ours, plainly, bare, grain = [], [], [], []
        theirs = grain_batches(np.asarray(plain))
        for epoch in range(1, 1 + context.repeats(15, 5)):
            windows = data.order.at(epoch * data.order.n, data.order.n).tolist()
            ours.append(mtokens / ours_s(data, epoch, batches))
            plainly.append(mtokens / plain_s(plain, windows, batches))
            bare.append(mtokens / plain_s(np.asarray(plain), windows, batches))
            if len(theirs):
                grain.append(mtokens / grain_s(theirs))
    note = f"{len(ours)} passes over {mtokens:.1f} M tokens; plain {median(plainly):.0f} M/s"
    ratios = [mine / theirs for mine, theirs in zip(ours, plainly, strict=True)]
    bare_ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    grain_ratios = [mine / its for mine, its in zip(ours, grain, strict=False)]
    its = f"Grain {median(grain):.0f} M/s" if grain else ""
    beside = [context.median("loader_ratio_to_grain", grain_ratios, "x", note=its)] if grain else []
    return [
        *beside,
        context.median("loader_ratio_to_plain_map", ratios, "x", note=note),
        context.median("loader_ratio_to_bare_array", bare_ratios, "x"),
        context.median("loader_mtokens_per_s", ours, "M/s"),
        context.result("loader_first_pass_mtokens_per_s", first, "M/s"),
    ]
