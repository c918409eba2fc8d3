"""Saving in the background: one rank's part of a checkpoint, while training goes on.

A save is these steps, one save at a time per rank:

1. `begin`, at a step boundary: free space is checked, the writer thread is woken;
2. the writer copies this rank's blocks into a staging buffer that was allocated and touched at the
   start, while the next forward and backward passes only read them;
3. `wait_copied`, before the state is changed next: training waits for the rest of the copy;
4. the writer, at low priority, writes the file, hashing it on the way, syncs it, then writes the
   manifest; only then the shard is announced. If the job wants incremental saves, the chunks that
   an earlier committed save wrote are left out: the others are moved together in the buffer first.

A thread does it rather than a process: copying, hashing, writing and syncing all happen without
the interpreter lock, Linux gives each thread its own priority, and a killed rank leaves no writer
behind. No collective is called here, so a slow disk of one rank never stops another.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import xxhash
from pydantic import JsonValue

from gangline_schemas.checkpoint import (
    RankManifest,
    TensorSlice,
    checkpoint_prefix,
    manifest_name,
    shard_name,
)
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.checkpoint import chunks
from gangline_worker.checkpoint.files import write_synced
from gangline_worker.checkpoint.layout import lay_out
from gangline_worker.checkpoint.local import Fingerprint, fingerprint, holdings
from gangline_worker.checkpoint.staging import move_together, staging

WRITER_NICENESS = 10
RESERVE_BYTES = 64 << 20  # left free on the disk, for logs and spools of others


@dataclass(frozen=True)
class SaverIdentity:
    """Whose checkpoints these are, and where they lie. Each `full_every`-th is written whole."""

    directory: Path
    job_id: str
    attempt: int
    rank: int
    world_size: int
    full_every: int = 1


@dataclass(frozen=True)
class SaveResult:
    """How one save of this rank ended; `error` is None when the shard is whole on disk.

    `size_bytes` is what it restores, `written_bytes` what of it was written for this save.
    """

    step: int
    size_bytes: int
    blocked_s: float
    copy_s: float
    write_s: float
    written_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True)
class _Plan:
    """Where each block goes; it holds as long as the state is made of the same tensors."""

    key: Fingerprint
    slices: tuple[TensorSlice, ...]
    size_bytes: int
    sources: list[torch.Tensor]
    staged: list[torch.Tensor]
    spans: tuple[chunks.Span, ...]
    padding: list[torch.Tensor]


@dataclass
class _Job:
    step: int
    plan: _Plan
    state: Mapping[str, JsonValue]
    metrics: Mapping[str, float]
    ready_event: torch.cuda.Event | None
    blocked_s: float
    copied: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    copy_s: float = 0.0
    written_bytes: int = 0


class AsyncSaver:
    """Saves this rank's part of checkpoints. Use from one thread, the one that trains."""

    def __init__(
        self,
        identity: SaverIdentity,
        announce: Callable[[ShardReady], None],
        committed: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`announce` is called in the writer thread once a shard and its manifest are on disk.

        `committed`, called there too, gives the newest step of this attempt that is committed and
        kept: a save may leave out what lies in its files, or in those that it refers to.
        """
        self._identity = identity
        self._announce = announce
        self._tables = chunks.Tables(identity.full_every, committed)
        self._plan: _Plan | None = None
        self._staging = torch.empty(0, dtype=torch.uint8)
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[SaveResult] = queue.SimpleQueue()
        self._current: _Job | None = None
        threading.Thread(target=self._write_for_ever, name="gangline-save", daemon=True).start()

    @property
    def busy(self) -> bool:
        """Whether a save is still being written."""
        return self._current is not None and not self._current.done.is_set()

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Plan for these tensors and touch the memory for it; gives the bytes this rank writes.

        Without it the first save does this, and blocks training for longer.
        """
        return self._plan_for(tensors).size_bytes

    def begin(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, JsonValue],
        metrics: Mapping[str, float],
    ) -> None:
        """Start to save; `wait_copied` must be called before any of the tensors change.

        Waits for a save that is still being written. Failures (a full disk) come as a
        `SaveResult`; they never stop training.
        """
        started = time.perf_counter()
        self.wait()
        plan = self._plan_for(tensors)
        event = None
        if any(source.is_cuda for source in plan.sources[:1]):
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        job = _Job(step, plan, state, metrics, event, blocked_s=time.perf_counter() - started)
        self._current = job
        self._jobs.put(job)

    def wait_copied(self) -> float:
        """Wait until the state may change again; gives the seconds waited."""
        job = self._current
        if job is None or job.copied.is_set():
            return 0.0
        started = time.perf_counter()
        job.copied.wait()
        waited = time.perf_counter() - started
        job.blocked_s += waited
        return waited

    def wait(self) -> None:
        """Wait until nothing is being written."""
        if self._current is not None:
            self._current.done.wait()

    def results(self) -> list[SaveResult]:
        """The saves that ended since the last call."""
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def _plan_for(self, tensors: Mapping[str, torch.Tensor]) -> _Plan:
        key = fingerprint(tensors)
        if self._plan is not None and self._plan.key == key:
            return self._plan
        me = self._identity
        parts = [held.owned() for held in holdings(tensors, me.rank, me.world_size).values()]
        slices, size = lay_out(block for block, _ in parts)
        sources = [data for block, data in parts if block.size_bytes]
        if self._staging.numel() < size:
            self._staging = staging(size, pinned=bool(sources) and sources[0].is_cuda)
        staged = [
            self._staging[s.byte_offset : s.byte_offset + s.size_bytes]
            .view(source.dtype)
            .view(source.shape)
            for s, source in zip(slices, sources, strict=True)
        ]
        cut = self._tables.wanted
        spans = chunks.cut(slices, size) if cut else ()
        gaps = [self._staging[a:b] for a, b in chunks.padding(slices)] if cut else []
        self._plan = _Plan(key, slices, size, sources, staged, spans, gaps)
        return self._plan

    def _write_for_ever(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICENESS)
        while True:
            job = self._jobs.get()
            error = None
            started = time.perf_counter()
            try:
                self._copy(job)
                self._write(job)
            except Exception as failure:  # noqa: BLE001 -- told as a result; training goes on
                error = f"{type(failure).__name__}: {failure}"
            finally:
                job.copied.set()
            self._results.put(
                SaveResult(
                    step=job.step,
                    size_bytes=job.plan.size_bytes,
                    blocked_s=job.blocked_s,
                    copy_s=job.copy_s,
                    write_s=time.perf_counter() - started,
                    written_bytes=job.written_bytes,
                    error=error,
                )
            )
            job.done.set()

    def _copy(self, job: _Job) -> None:
        started = time.perf_counter()
        if job.ready_event is None:
            if job.plan.sources:
                torch._foreach_copy_(job.plan.staged, job.plan.sources)
        else:  # a stream of its own, after what was queued when the save began
            device = job.plan.sources[0].device
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_event(job.ready_event)
            with torch.cuda.stream(stream):
                for staged, source in zip(job.plan.staged, job.plan.sources, strict=True):
                    staged.copy_(source, non_blocking=True)
            stream.synchronize()
        job.copy_s = time.perf_counter() - started
        job.copied.set()

    def _digests(self, plan: _Plan) -> list[str]:
        if plan.padding:  # the moves of earlier saves left bytes there
            torch._foreach_zero_(plan.padding)
        data = self._staging.numpy().data
        return [xxhash.xxh3_128_hexdigest(data[start:end]) for start, end in plan.spans]

    def _write(self, job: _Job) -> None:
        me, started = self._identity, time.perf_counter()
        prefix = checkpoint_prefix("", me.attempt, job.step).lstrip("/")
        folder = me.directory / prefix
        written_bytes, found = job.plan.size_bytes, None
        if self._tables.wanted:
            digests = self._digests(job.plan)
            if self._tables.holds(job.step, digests):
                return
            found = chunks.plan(job.step, job.plan.spans, digests, self._tables.base())
            written_bytes = move_together(self._staging, found.spans)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(folder).free
        if free < written_bytes + RESERVE_BYTES:
            raise OSError(
                f"{folder} has {free:,} bytes free; {written_bytes:,} and a reserve of "
                f"{RESERVE_BYTES:,} are needed"
            )
        data = self._staging.numpy().data[:written_bytes]
        shard = write_synced(folder / shard_name(me.rank), data, shard_name(me.rank))
        manifest = RankManifest(
            format=1 if found is None else 2,
            job_id=me.job_id,
            attempt=me.attempt,
            step=job.step,
            rank=me.rank,
            world_size=me.world_size,
            shard=shard,
            tensors=job.plan.slices,
            chunks=None if found is None else found.table.chunks,
            state=dict(job.state),
            metrics=dict(job.metrics),
        )
        written = write_synced(
            folder / manifest_name(me.rank),
            memoryview(manifest.encode()),
            f"{prefix}/{manifest_name(me.rank)}",
        )
        if found is not None:
            self._tables.add(found.table)
        job.written_bytes = written_bytes
        self._announce(
            ShardReady(
                step=job.step,
                rank=me.rank,
                world_size=me.world_size,
                manifest=written,
                shard=shard.model_copy(update={"key": f"{prefix}/{shard_name(me.rank)}"}),
                refers=manifest.refers,
                write_s=time.perf_counter() - started,
                blocked_s=job.blocked_s,
                metrics=dict(job.metrics),
            )
        )
