"""The history of each job and of the capacity, from a log of gangline.scheduling.

The platform's own log and the log of a rerun (rerun.py) are read by the same code, so their
figures count the same things.

Progress of an attempt is in seconds of the whole gang. It begins when all ranks have started, and
ends with the request to stop or with the gang; an elastic gang of half its size makes half of it.
The next attempt resumes from the checkpoint that its gang.allocated names, with the progress at
that checkpoint's commit; without one it starts from scratch.
Two cases are read otherwise
1. After a restore the work that was done is not lost: the user wanted other work.
2. A job that succeeded in less time than an earlier attempt of it had run keeps its progress where
   the platform does not see it: each attempt continues where the last one ended.

Cost: O(events), and a few values for each attempt and checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from gangline_schemas.base import Event
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    GangStopping,
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
    ReleaseReason,
    ResumePointChanged,
    StopReason,
)
from gangline_schemas.events.workers import NodeInfo
from gangline_schemas.job import JobSpec, JobState


class Logged(NamedTuple):
    """One event of the log, and when it was decided."""

    at: datetime
    event: Event


@dataclass(slots=True)
class Attempt:
    """One gang of a job. `lost`: it was released while one of its nodes was gone.

    `saved`: its checkpoints, and when each counted. `failed_near`: nodes that its failure named,
    and whether they were ruled out.
    """

    gpus: int
    nodes: tuple[tuple[str, str], ...]
    allocated_at: datetime
    resume: CheckpointRef | None
    running_at: datetime | None = None
    stop_at: datetime | None = None
    stop: StopReason | None = None
    released_at: datetime | None = None
    reason: ReleaseReason | None = None
    lost: bool = False
    failed_near: tuple[tuple[str, ...], bool] = ((), False)
    saved: list[tuple[datetime, CheckpointRef]] = field(default_factory=list)

    def allocated_s(self, end: datetime) -> float:
        """For how long it had its GPUs, by the end of the log."""
        return ((self.released_at or end) - self.allocated_at).total_seconds()

    def until(self, end: datetime) -> datetime:
        """When its progress ended."""
        if self.reason is ReleaseReason.SUCCEEDED and self.released_at is not None:
            return self.released_at
        return self.stop_at or self.released_at or end

    def began(self, end: datetime) -> datetime:
        """When its progress began; one whose ranks never all started made none, or all of it."""
        if self.running_at is not None:
            return self.running_at
        succeeded = self.reason is ReleaseReason.SUCCEEDED
        return self.allocated_at if succeeded else self.until(end)


@dataclass(slots=True)
class JobHistory:
    """One job. `state` is its last one, `ended_at` None when it had not ended."""

    job_id: str
    spec: JobSpec
    queued_at: datetime
    attempts: list[Attempt] = field(default_factory=list)
    state: JobState = JobState.PENDING
    ended_at: datetime | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.spec.resources.gpus

    def allocated_s(self, end: datetime) -> float:
        """For how long it had GPUs."""
        return sum(attempt.allocated_s(end) for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where each attempt began and what it reached, in seconds of the whole gang."""

    starts: tuple[float, ...]
    reached: tuple[float, ...]
    keeps_itself: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """A whole log. `capacity`: GPUs of the nodes that are there, from each moment on."""

    start: datetime
    end: datetime
    jobs: dict[str, JobHistory]
    capacity: tuple[tuple[datetime, int], ...]


class Nodes:
    """Which incarnation of each node is there, as a log advances. `up`: it counts as there."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NodeInfo, bool]] = {}
        self.gpus = 0

    def info(self, node_id: str) -> NodeInfo | None:
        """The node as it was admitted last; None when it never was."""
        known = self._known.get(node_id)
        return known[0] if known is not None else None

    def incarnation(self, node_id: str) -> str | None:
        """The one that was admitted last; None when none was."""
        info = self.info(node_id)
        return info.incarnation if info is not None else None

    def gone(self, node_id: str, incarnation: str) -> bool:
        """Whether that incarnation failed, or was followed by another."""
        known = self._known.get(node_id)
        return known is None or known[0].incarnation != incarnation or not known[1]

    def note(self, event: Event) -> None:
        """Take an event about a node."""
        if isinstance(event, NodeAdmitted):
            self._put(event.node, up=True)
        elif isinstance(event, NodeCordoned) and event.reason in {"failed", "leaving"}:
            known = self._known.get(event.node_id)
            if known is not None and known[0].incarnation == event.incarnation:
                self._put(known[0], up=False)

    def _put(self, info: NodeInfo, *, up: bool) -> None:
        before = self._known.get(info.node_id)
        self.gpus += len(info.gpus) if up else 0
        self.gpus -= len(before[0].gpus) if before is not None and before[1] else 0
        self._known[info.node_id] = (info, up)


def read_history(log: Iterable[Logged], end: datetime | None = None) -> History:
    """Fold a log to its history. `end`: where it is cut; else its last event's time.

    Raises ValueError for an empty log.
    """
    jobs: dict[str, JobHistory] = {}
    nodes = Nodes()
    capacity: list[tuple[datetime, int]] = []
    first = last = None
    for at, event in log:
        if end is not None and at > end:
            break
        first, last = first or at, at
        if isinstance(event, NodeAdmitted | NodeCordoned):
            nodes.note(event)
            capacity.append((at, nodes.gpus))
        elif isinstance(event, JobQueued):
            jobs[event.job_id] = JobHistory(event.job_id, event.spec, at)
        elif (job := jobs.get(getattr(event, "job_id", ""))) is not None:
            _note(job, at, event, nodes)
    if first is None or last is None:
        raise ValueError("the log is empty")
    return History(first, end or last, jobs, tuple(capacity))


def _note(job: JobHistory, at: datetime, event: Event, nodes: Nodes) -> None:
    """Take an event about a job that was queued."""
    if isinstance(event, GangAllocated):
        parts = tuple((part.node_id, part.incarnation) for part in event.nodes)
        job.attempts.append(Attempt(event.world_size, parts, at, event.resume))
    elif isinstance(event, JobStateChanged):
        job.state = event.state
        if event.state is JobState.RUNNING and job.attempts:
            job.attempts[-1].running_at = at
        if event.state.terminal:
            job.ended_at = at
    elif isinstance(event, GangStopping) and event.reason is not StopReason.FAILED:
        job.attempts[-1].stop_at = job.attempts[-1].stop_at or at
        job.attempts[-1].stop = event.reason
    elif isinstance(event, GangReleased):
        attempt = job.attempts[-1]
        attempt.released_at, attempt.reason = at, event.reason
        attempt.lost = any(nodes.gone(*part) for part in attempt.nodes)
        attempt.failed_near = (event.avoid_nodes, event.avoid_required)
    elif isinstance(event, ResumePointChanged):
        point = event.checkpoint
        new = point is not None and not event.restored and event.forgotten is None
        if point is not None and new and point.job_id == job.job_id:
            job.attempts[point.attempt - 1].saved.append((at, point))


def progress_of(job: JobHistory, end: datetime) -> Progress:
    """How far each attempt came; see the module."""
    found = _progress(job, end, keeps_itself=False)
    succeeded = job.state is JobState.SUCCEEDED and job.attempts
    if succeeded and found.reached[-1] < max(found.reached):
        return _progress(job, end, keeps_itself=True)
    return found


def place_of(job: JobHistory, index: int, start: float, at: datetime, end: datetime) -> float:
    """The progress of an attempt that began at `start`, at a moment."""
    attempt = job.attempts[index]
    worked_s = (min(at, attempt.until(end)) - attempt.began(end)).total_seconds()
    return start + max(0.0, worked_s) * attempt.gpus / job.gpus


def _progress(job: JobHistory, end: datetime, *, keeps_itself: bool) -> Progress:
    starts: list[float] = []
    reached: list[float] = []
    for index, attempt in enumerate(job.attempts):
        before = job.attempts[index - 1] if index else None
        if before is None:
            start = 0.0
        elif keeps_itself or before.stop is StopReason.RESTORE:
            start = reached[-1]
        else:
            start = _resumed(job, attempt.resume, starts, end)
        starts.append(start)
        reached.append(place_of(job, index, start, attempt.until(end), end))
    return Progress(tuple(starts), tuple(reached), keeps_itself)


def _resumed(
    job: JobHistory, point: CheckpointRef | None, starts: Sequence[float], end: datetime
) -> float:
    """The progress that a checkpoint stands for; 0 for another run's, or an unknown one."""
    if point is None or point.job_id != job.job_id or point.attempt > len(starts):
        return 0.0
    index = point.attempt - 1
    for at, saved in reversed(job.attempts[index].saved):
        if saved.step == point.step:
            return place_of(job, index, starts[index], at, end)
    return 0.0
