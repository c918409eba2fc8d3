"""Saves one rank's part of a checkpoint in the background, while training continues.

A save is these steps, one save at a time per rank:

1. `begin`, at a step boundary: the copier and the writer thread are woken;
2. the copier, at low priority, copies this rank's blocks into a staging buffer that was allocated
   and touched at the start, while the next forward and backward passes only read them. It hashes
   its copies, and all tensors that every rank holds alike, so that a difference is found;
3. the writer checks that there is room and lets the disk take what is copied while the rest is;
4. `wait_copied`, before the state is changed next: training waits for the rest of the copy;
5. the writer syncs the file, then writes the manifest; only then the shard is announced.

If the job wants incremental saves, nothing is written before all is copied: the chunks that an
earlier committed save wrote are left out, the others are moved together in the buffer first.

A step is written once, and steps grow: what was announced may be committed, and no later save may
change a byte of it. The same state of the newest step again is none to save.

Threads do it rather than processes: copying, hashing, writing and syncing all happen without the
interpreter lock, Linux gives each thread its own priority, and a killed rank leaves no writer
behind. No collective is called here, so a slow disk of one rank never stops another. The copier
never waits for the disk.
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import xxhash
from pydantic import JsonValue

from gangline_schemas.checkpoint import (
    MAX_MANIFEST_BYTES,
    RankManifest,
    checkpoint_prefix,
    manifest_name,
    shard_name,
)
from gangline_schemas.events.workers import ObjectDigest
from gangline_schemas.rank_protocol import ShardReady
from gangline_worker.checkpoint import chunks
from gangline_worker.checkpoint.alike import digest
from gangline_worker.checkpoint.background import Background
from gangline_worker.checkpoint.files import Filling, make_folder, write_filling, write_synced
from gangline_worker.checkpoint.gpu_copy import GpuCopier, Marks, mark
from gangline_worker.checkpoint.plan import Plan, Planner
from gangline_worker.checkpoint.staging import move_together

COPIER_NICENESS = 5  # a quarter of a core that a step takes: about as long as the disk needs
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
class _Announced:
    """The result of a save under its step."""

    step: int
    state: Mapping[str, JsonValue]
    xxh3: str  # of all that was written


@dataclass
class _Job:
    step: int
    plan: Plan
    state: Mapping[str, JsonValue]
    metrics: Mapping[str, float]
    marks: Marks
    blocked_s: float
    filling: Filling | None  # None: what of it is written is known when all is copied
    alike: dict[str, str] = field(default_factory=dict)  # their digests
    copied: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    copy_s: float = 0.0
    write_s: float = 0.0
    written_bytes: int = 0


class AsyncSaver:
    """Saves this rank's part of checkpoints. Use from one thread, the one that trains."""

    def __init__(
        self,
        identity: SaverIdentity,
        announce: Callable[[ShardReady], None],
        committed: Callable[[], int | None] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`announce` is called in the writer thread once a shard and its manifest are on disk.

        The copier thread calls `committed`, which gives the newest retained step of this attempt: a
        save may leave out bytes that lie in its files, or in those that it refers to. Once all is
        copied, the thread calls `check`: if it raises, the save has failed.
        """
        self._identity = identity
        self._announce = announce
        self._check = check
        self._tables = chunks.Tables(identity.full_every, committed)
        self._planner = Planner(identity.rank, identity.world_size, cut=self._tables.wanted)
        self._results: queue.SimpleQueue[SaveResult] = queue.SimpleQueue()
        self._current: _Job | None = None
        self._newest: _Announced | None = None
        self._gpu_copier = GpuCopier()
        self._copier = Background("gangline-copy", COPIER_NICENESS)
        self._writer = Background("gangline-save")

    @property
    def busy(self) -> bool:
        """Whether a save is still being written."""
        return self._current is not None and not self._current.done.is_set()

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Plan for these tensors and touch the memory for it; gives the bytes this rank writes.

        Without it the first save does this, and blocks training for longer.
        """
        return self._planner.plan(tensors).size_bytes

    def begin(
        self,
        step: int,
        tensors: Mapping[str, torch.Tensor],
        state: Mapping[str, JsonValue],
        metrics: Mapping[str, float],
    ) -> None:
        """Start to save; `wait_copied` must be called before any of the tensors change.

        Waits for a save that is still being written. Failures (a full disk, a step that was saved
        before with another state) come as a `SaveResult`; they never stop training.
        """
        started = time.perf_counter()
        self.wait()
        plan = self._planner.plan(tensors)
        marks = mark([*plan.sources, *plan.alike.values()])
        filling = None
        if not self._tables.wanted:
            filling = Filling(plan.region.numpy().data[: plan.size_bytes])
        blocked_s = time.perf_counter() - started
        job = _Job(step, plan, state, metrics, marks, blocked_s, filling)
        self._current = job
        copying = self._copier.submit(partial(self._fill, job))
        self._writer.submit(partial(self._save, job, copying))

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

    def release_tensors(self) -> None:
        """Keep no tensor once it is copied, for states that are made for one save.

        They would take a GPU's memory until the next save, which is planned again instead.
        """
        self.wait_copied()
        self._planner.release_tensors()

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

    def _save(self, job: _Job, copying: Future[None]) -> None:
        """In the writer thread."""
        error = None
        try:
            self._write(job, copying)
        except Exception as failure:  # noqa: BLE001 -- given as a result; training continues
            error = f"{type(failure).__name__}: {failure}"
        self._copier.finish()
        self._results.put(
            SaveResult(
                step=job.step,
                size_bytes=job.plan.size_bytes,
                blocked_s=job.blocked_s,
                copy_s=job.copy_s,
                write_s=job.write_s,
                written_bytes=job.written_bytes,
                error=error,
            )
        )
        job.done.set()

    def _fill(self, job: _Job) -> None:
        """In the copier thread."""
        started = time.perf_counter()
        try:
            self._copy(job)
            job.copy_s = time.perf_counter() - started
        except Exception as failure:
            if job.filling is not None:
                job.filling.fail(failure)
            raise
        finally:
            job.copied.set()

    def _copy(self, job: _Job) -> None:
        """Copy all, hashing it on the way if it is to be written as it is."""
        plan, filling = job.plan, job.filling
        if not job.marks:
            for group, end in plan.groups:
                torch._foreach_copy_(plan.staged[group], plan.sources[group])
                if filling is not None:
                    filling.filled(end)
        else:
            self._gpu_copier.copy(plan.staged, plan.sources, job.marks)
            job.alike = self._gpu_copier.digests(plan.alike, job.marks)
        in_memory = {name: one for name, one in plan.alike.items() if not one.is_cuda}
        job.alike |= {name: digest(one) for name, one in in_memory.items()}
        if not job.marks:
            return
        job.copied.set()
        if filling is not None:
            filling.fill_up()

    def _changed(self, job: _Job) -> chunks.Written | None:
        """The bytes that an incremental save writes; None: this step has been saved."""
        if job.plan.padding:  # the moves of earlier saves left bytes there
            torch._foreach_zero_(job.plan.padding)
        data = job.plan.region.numpy().data
        digests = [xxhash.xxh3_128_hexdigest(data[start:end]) for start, end in job.plan.spans]
        if self._tables.holds(job.step, digests):
            return None
        return chunks.plan(job.step, job.plan.spans, digests, self._tables.base())

    def _write(self, job: _Job, copying: Future[None]) -> None:
        me, started = self._identity, time.perf_counter()
        prefix = checkpoint_prefix("", me.attempt, job.step).lstrip("/")
        folder = me.directory / prefix
        filling, found, written_bytes = job.filling, None, job.plan.size_bytes
        again = self._is_again(job)
        if filling is not None and again is not None:
            copying.result()
            if filling.hexdigest() != again.xxh3:
                raise ValueError(chunks.CHANGED.format(job.step))
            return
        if filling is None:
            copying.result()
            found = self._copier.submit(partial(self._changed, job)).result()
            if found is None:
                return
            moving = self._copier.submit(partial(move_together, job.plan.region, found.spans))
            written_bytes = moving.result()
            filling = Filling(job.plan.region.numpy().data[:written_bytes])
            self._copier.submit(filling.fill_up)
        checked = self._copier.submit(self._check)
        make_folder(folder)
        free = shutil.disk_usage(folder).free
        if free < written_bytes + RESERVE_BYTES:
            raise OSError(
                f"{folder} has {free:,} bytes free; {written_bytes:,} and a reserve of "
                f"{RESERVE_BYTES:,} are needed"
            )
        shard = write_filling(folder / shard_name(me.rank), filling, shard_name(me.rank))
        try:
            copying.result()
            checked.result()
            manifest = self._manifest(job, shard, found)
            written = write_synced(
                folder / manifest_name(me.rank),
                memoryview(_readable(manifest.encode())),
                f"{prefix}/{manifest_name(me.rank)}",
            )
        except BaseException:
            (folder / shard_name(me.rank)).unlink(missing_ok=True)  # it would stay for ever
            raise
        job.written_bytes = written_bytes
        job.write_s = time.perf_counter() - started
        self._announce(
            ShardReady(
                step=job.step,
                rank=me.rank,
                world_size=me.world_size,
                manifest=written,
                shard=shard.model_copy(update={"key": f"{prefix}/{shard_name(me.rank)}"}),
                refers=manifest.refers,
                write_s=job.write_s,
                blocked_s=job.blocked_s,
                metrics=dict(job.metrics),
            )
        )
        # Not before: a step whose announcement failed may be saved again.
        self._newest = _Announced(job.step, job.state, shard.xxh3)
        if found is not None:
            self._tables.add(found.table)

    def _manifest(
        self, job: _Job, shard: ObjectDigest, found: chunks.Written | None
    ) -> RankManifest:
        me = self._identity
        return RankManifest(
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
            alike=job.alike,
            alone=job.plan.alone,
        )

    def _is_again(self, job: _Job) -> _Announced | None:
        """The newest save if this is of the same step.

        Raises:
            ValueError: it comes after a later step, or it is of another state beside the tensors.
        """
        newest = self._newest
        if newest is None or job.step > newest.step:
            return None
        if job.step < newest.step:
            raise ValueError(
                f"step {job.step} comes after step {newest.step}; within an attempt the steps "
                "that are saved must grow: count them over all epochs"
            )
        if job.state != newest.state:
            raise ValueError(chunks.CHANGED.format(job.step))
        return newest


def _readable(manifest: bytes) -> bytes:
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise ValueError(
            f"what is in the state beside tensors makes a manifest of {len(manifest):,} bytes, "
            f"above {MAX_MANIFEST_BYTES:,}: keep long lists of numbers as tensors"
        )
    return manifest
