"""Soft state: what the ranks of open checkpoints have reported on gangline.workers.

The log says where the reports of an open checkpoint begin (`checkpoint.begun`). A takeover reads
them again from there, so they are in no event, no snapshot and no fingerprint. Of each rank the
first report counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import Decision, Recall
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.policy.ranks import Runs, runs_of
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointCommitted
from gangline_schemas.events.workers import CheckpointShardWritten, NodeSaved

TYPES = frozenset({CheckpointShardWritten.type, NodeSaved.type})


@dataclass(slots=True)
class Reported:
    """Of one checkpoint: the parts in the store by rank, and the ranks with a part on a node."""

    shards: dict[int, CheckpointShardWritten] = field(default_factory=dict)
    on_nodes: set[int] = field(default_factory=set)
    _ordered: tuple[CheckpointShardWritten, ...] = field(default=(), compare=False)

    def complete(self, world_size: int, also: Collection[int] = ()) -> bool:
        """Whether every rank's part is in the store, with these ranks'."""
        ranks = self.shards.keys() | set(also)
        return len(ranks) == world_size and max(ranks, default=-1) < world_size

    def on_all_nodes(self, world_size: int, also: Collection[int]) -> bool:
        """Whether every rank's part is on its node's disk, with these ranks'."""
        return sum(rank < world_size for rank in self.on_nodes.union(also)) == world_size

    def by_rank(self) -> tuple[CheckpointShardWritten, ...]:
        """The parts in the store, in the order of their ranks. Cost: O(ranks), once a change."""
        if len(self._ordered) != len(self.shards):
            self._ordered = tuple(shard for _, shard in sorted(self.shards.items()))
        return self._ordered

    def runs(self, also: Collection[int] = ()) -> Runs:
        """The ranks whose parts are in the store, with these."""
        return runs_of(self.shards.keys() | set(also))


@dataclass(slots=True)
class Reports:
    """The reports on open checkpoints, by job and step.

    `late` are ranks whose parts came while their checkpoint's objects were being deleted. `now` is
    the time of the last Tick.
    """

    of_jobs: dict[str, dict[StepId, Reported]] = field(default_factory=dict)
    late: dict[tuple[str, StepId], set[int]] = field(default_factory=dict)
    now: datetime | None = None

    def of(self, job_id: str, step_id: StepId) -> Reported:
        """The reports on one checkpoint; empty when it is not known."""
        return self.of_jobs.get(job_id, {}).get(step_id) or Reported()

    def note(self, job: Job, event: CheckpointShardWritten | NodeSaved) -> None:
        """Keep a report of an open checkpoint, or of one whose deletion must be done again."""
        job_id, step_id = event.job_id, StepId(event.attempt, event.step)
        if step_id not in job.open:
            if isinstance(event, CheckpointShardWritten) and step_id in job.deleting:
                self._note_late(job, event)
            return
        found = self.of_jobs.setdefault(job_id, {}).setdefault(step_id, Reported())
        if isinstance(event, CheckpointShardWritten):
            found.shards.setdefault(event.rank, event)
        else:
            found.on_nodes.update(event.ranks)

    def forget(self, job_id: str, step_id: StepId) -> None:
        """The checkpoint is open no more."""
        steps = self.of_jobs.get(job_id, {})
        steps.pop(step_id, None)
        if not steps:
            self.of_jobs.pop(job_id, None)

    def _note_late(self, job: Job, event: CheckpointShardWritten) -> None:
        step_id = StepId(event.attempt, event.step)
        if not job.knew(step_id, event.rank):
            self.late.setdefault((event.job_id, step_id), set()).add(event.rank)


def recalled(jobs: Iterable[Job]) -> Recall:
    """From where the reports of all open checkpoints are read again. Cost: O(open checkpoints)."""
    offsets: dict[int, int] = {}
    for job in jobs:
        for opened in job.open.values():
            for partition, offset in opened.places.items():
                offsets[partition] = min(offset, offsets.get(partition, offset))
    return Recall(Topic.WORKERS, TYPES, offsets)


def observe(reports: Reports, jobs: dict[str, Job], observed: Received | Decision) -> None:
    """Keep a part that an input reports; forget what a decision ends."""
    event = observed.event if isinstance(observed, Decision) else observed.envelope.data
    match event:
        case CheckpointShardWritten() | NodeSaved():
            job = jobs.get(event.job_id)
            if job is not None:
                reports.note(job, event)
        case CheckpointCommitted(checkpoint=point):
            reports.forget(event.job_id, StepId(point.attempt, point.step))
        case CheckpointAbandoned():
            step_id = StepId(event.attempt, event.step)
            reports.forget(event.job_id, step_id)
            reports.late.pop((event.job_id, step_id), None)
