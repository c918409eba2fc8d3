"""Events that the checkpoint service reads, and real parts of checkpoints in a store."""

from __future__ import annotations

import math
import struct
from typing import Literal

from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_checkpoints.core.model import Verified
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.snapshot import fingerprint
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.checkpoint import (
    RankManifest,
    TensorSlice,
    checkpoint_prefix,
    manifest_name,
    shard_name,
)
from gangline_schemas.checkpoint_policy import CheckpointPolicy, Incremental, Retention
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    JobStateChanged,
    ReleaseReason,
    ResumePointChanged,
)
from gangline_schemas.events.workers import (
    CheckpointShardLost,
    CheckpointShardWritten,
    ExitReason,
    NodeSaved,
    ObjectDigest,
    WorkerExited,
)
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.resources import Resources
from gangline_storage import ObjectStore, digest_bytes
from support.builders.gangs import assigned, gang_allocated, gang_released
from support.harnesses.decider_run import START, DeciderRun

JOB = "job-1"
PREFIX = f"teams/nlp/checkpoints/{JOB}"
ROWS, COLUMNS = 6, 4


def checkpoint_run() -> DeciderRun[CheckpointState, Reports]:
    return DeciderRun(CheckpointDecider(), fingerprint)


def allocated(
    attempt: int = 1,
    *,
    job_id: str = JOB,
    world_size: int = 2,
    keep: Retention | None = None,
    resume: CheckpointRef | None = None,
    promote: Literal["off", "final"] | int = "off",
    validates: bool = False,
    incremental: Incremental | None = None,
) -> GangAllocated:
    wanted = JobSpec(
        name="train",
        team="nlp",
        run="true",
        resources=Resources(gpus=world_size),
        resume_from=JOB if validates else None,
        validates=validates,
        checkpoint=CheckpointPolicy(
            keep=keep or Retention(),
            promote=promote,
            incremental=incremental,
            resume=str(resume.step) if validates and resume is not None else "auto",
        ),
    )
    part = assigned("n1", range(world_size), incarnation="a")
    return gang_allocated(job_id, wanted, part, attempt=attempt, resume=resume)


def released(
    attempt: int = 1,
    reason: ReleaseReason = ReleaseReason.RESTARTING,
    *,
    job_id: str = JOB,
) -> GangReleased:
    return gang_released(job_id, attempt, START, reason)


def resumes(attempt: int, step: int, *, job_id: str = JOB) -> ResumePointChanged:
    """The scheduler has read of this checkpoint: the job's next attempt starts from it."""
    return ResumePointChanged(job_id=job_id, checkpoint=ref(attempt, step, job_id=job_id))


def restored(attempt: int, step: int, *, job_id: str = JOB) -> ResumePointChanged:
    """A user lets the job's next attempt start from this checkpoint."""
    point = ref(attempt, step, job_id=job_id)
    return ResumePointChanged(job_id=job_id, checkpoint=point, restored=True)


def ended(
    job_id: str = JOB, state: JobState = JobState.CANCELLED, reason: str = ""
) -> JobStateChanged:
    return JobStateChanged(
        job_id=job_id, attempt=1, previous=JobState.PENDING, state=state, reason=reason
    )


def ref(attempt: int, step: int, *, job_id: str = JOB) -> CheckpointRef:
    folder = checkpoint_prefix(f"teams/nlp/checkpoints/{job_id}", attempt, step)
    return CheckpointRef(
        job_id=job_id,
        attempt=attempt,
        step=step,
        world_size=2,
        commit_key=f"{folder}/COMMIT.json",
    )


def could_not_start(damaged: str, *, attempt: int = 1, job_id: str = JOB) -> WorkerExited:
    """A rank found this object of the checkpoint that it starts from damaged, and no other copy."""
    return WorkerExited(
        job_id=job_id, attempt=attempt, rank=0, node_id="n1", incarnation="a",
        reason=ExitReason.LAUNCH_FAILED, damaged_object=damaged,
    )  # fmt: skip


def on_node(*ranks: int, step: int = 20, attempt: int = 1, job_id: str = JOB) -> NodeSaved:
    """These ranks have saved on a node of their own."""
    node_id = f"n{ranks[0]}"
    return NodeSaved(job_id=job_id, attempt=attempt, step=step, node_id=node_id, ranks=ranks)


def lost(rank: int, step: int = 20, *, attempt: int = 1, job_id: str = JOB) -> CheckpointShardLost:
    """A part that will not be in the store."""
    return CheckpointShardLost(
        job_id=job_id, attempt=attempt, step=step, rank=rank, node_id="n0", reason="no bucket"
    )


def part(
    rank: int,
    step: int = 20,
    *,
    attempt: int = 1,
    job_id: str = JOB,
    world_size: int = 2,
    metrics: dict[str, float] | None = None,
    folder: str | None = None,
) -> CheckpointShardWritten:
    """A part without any bytes: for decisions alone."""
    where = folder or checkpoint_prefix(f"teams/nlp/checkpoints/{job_id}", attempt, step)
    return CheckpointShardWritten(
        job_id=job_id,
        attempt=attempt,
        step=step,
        rank=rank,
        world_size=world_size,
        node_id="n1",
        manifest=_digest(f"{where}/{manifest_name(rank)}", b"manifest"),
        shards=(_digest(f"{where}/{shard_name(rank)}", b"shard"),),
        metrics=metrics or {},
    )


def write_part(
    store: ObjectStore,
    rank: int,
    step: int = 20,
    *,
    attempt: int = 1,
    world_size: int = 2,
    tensors: tuple[TensorSlice, ...] | None = None,
) -> CheckpointShardWritten:
    """A real part: rows of one tensor, its manifest, both in the store."""
    folder = checkpoint_prefix(PREFIX, attempt, step)
    pieces = tensors if tensors is not None else (rows_of(rank, world_size),)
    data = b"".join(struct.pack("<f", float(rank)) * math.prod(piece.shape) for piece in pieces)
    manifest = RankManifest(
        job_id=JOB,
        attempt=attempt,
        step=step,
        rank=rank,
        world_size=world_size,
        shard=_digest(shard_name(rank), data),
        tensors=pieces,
        state={"data_position": step},
    ).encode()
    store.put(f"{folder}/{shard_name(rank)}", data)
    store.put(f"{folder}/{manifest_name(rank)}", manifest)
    written = part(rank, step, attempt=attempt, world_size=world_size)
    return written.model_copy(
        update={
            "manifest": _digest(f"{folder}/{manifest_name(rank)}", manifest),
            "shards": (_digest(f"{folder}/{shard_name(rank)}", data),),
        }
    )


def rows_of(rank: int, world_size: int) -> TensorSlice:
    """This rank's rows of a tensor of ROWS x COLUMNS."""
    count = ROWS // world_size
    return TensorSlice(
        name="layer.weight",
        dtype="float32",
        global_shape=(ROWS, COLUMNS),
        start=(rank * count, 0),
        shape=(count, COLUMNS),
        byte_offset=0,
        size_bytes=count * COLUMNS * 4,
    )


def commit(
    run: DeciderRun[CheckpointState, Reports],
    step: int,
    *,
    attempt: int = 1,
    job_id: str = JOB,
    metrics: dict[str, float] | None = None,
    heard: bool = True,
    refers: tuple[int, ...] = (),
) -> list[Event]:
    """All ranks write, the verification is fine, the scheduler has `heard` of the commit."""
    for rank in (0, 1):
        run.feed(part(rank, step, attempt=attempt, job_id=job_id, metrics=metrics))
    verified = Verified(100, 5, 0.1, whole_bytes=200 if refers else None, refers=refers)
    events = run.done(f"verify:{job_id}:{attempt}:{step}:0", verified)
    if not heard:
        return events
    return [*events, *run.feed(resumes(attempt, step, job_id=job_id))]


def _digest(key: str, data: bytes) -> ObjectDigest:
    return ObjectDigest(key=key, size_bytes=len(data), xxh3=digest_bytes(data))
