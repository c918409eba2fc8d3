"""The live model: the current jobs and nodes, folded from all topics. Pure: no I/O, no clock.

`Live.apply` takes one event of any topic. Topics may come in any relative order, and a record may
come twice. Memory is bounded: the newest `ENDED_KEPT` ended jobs stay (history is in ClickHouse),
and each other map removes its oldest entries.
"""

# ruff: noqa: ARG002 - the handlers of all events share one signature.
from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import singledispatchmethod
from itertools import islice
from typing import Generic, TypeVar

from gangline_gateway import checkpoint_rows
from gangline_gateway.job_ids import suffix_of
from gangline_gateway.live_model import (
    JobDetails,
    LiveFacts,
    LiveJob,
    LiveNode,
    Outcome,
    Progress,
)
from gangline_gateway.publish import SOURCE
from gangline_schemas.api.checkpoints import Advice, Checkpoint
from gangline_schemas.api.data import Approval
from gangline_schemas.api.jobs import REJECTED, Failure, Flag, Stopping, Waiting
from gangline_schemas.base import Event
from gangline_schemas.data_use import DataUse
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    CheckpointSaved,
    CheckpointScrubbed,
    EffectDeferred,
    IntervalAdvised,
    PromotionRefused,
    PromotionRequested,
)
from gangline_schemas.events.faults import (
    GangFailed,
    JobFlagged,
    NodeDistrusted,
    NodeFailed,
    NodeRecovered,
    NodeSuspected,
    WorkerStraggling,
)
from gangline_schemas.events.progress import RunProgress, progress_key
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    JobRejected,
    PinAdmitted,
    PriorityAdmitted,
    RequestRefused,
    RestoreAdmitted,
    SnapshotApproved,
    SnapshotWithdrawn,
    TeamConfigured,
)
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    GangStopping,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    NodeAssignment,
    NodeCordoned,
    NodeUncordoned,
)
from gangline_schemas.events.workers import NodeUnfit
from gangline_schemas.job import JobSpec, JobState

Answer = (
    CancelAdmitted
    | PriorityAdmitted
    | RestoreAdmitted
    | PinAdmitted
    | DrainAdmitted
    | RequestRefused
    | TeamConfigured
    | SnapshotApproved
    | SnapshotWithdrawn
)
ENDED_KEPT = 10_000
OUTCOMES_KEPT = 10_000
LEFT_NODES_KEPT = 1000  # cloud machines may have new names each time
_OTHERS_KEPT = 3 * ENDED_KEPT
METRICS_OF_A_RUN = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ValueT = TypeVar("ValueT")


class Recent(dict[str, ValueT], Generic[ValueT]):
    """A dict of at most `size` entries: a new key removes the one that was put longest ago."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def put(self, key: str, value: ValueT) -> str | None:
        """Sets a value; returns the key that was removed for it, if any."""
        self.pop(key, None)
        self[key] = value
        if len(self) <= self._size:
            return None
        oldest = next(iter(self))
        del self[oldest]
        return oldest

    def change(self, key: str, change: Callable[[ValueT], ValueT]) -> None:
        """Replaces the value of a key that exists; its age stays."""
        if key in self:
            self[key] = change(self[key])


JobPlace = tuple[int, str]
"""A job's place in lists: milliseconds of its submission, and its id."""


def place_of(job: LiveJob) -> JobPlace:
    """The job's place in the order of lists."""
    return (job.submitted_at - _EPOCH) // timedelta(milliseconds=1), job.job_id


class Live:
    """The read model. Not thread-safe: the tail guards it, and readers take a LiveView."""

    def __init__(self, ended_kept: int = ENDED_KEPT) -> None:
        self.jobs: dict[str, LiveJob] = {}
        self.nodes: dict[str, LiveNode] = {}
        self.approvals: dict[DataUse, Approval] = {}
        self.outcomes: Recent[Outcome] = Recent(OUTCOMES_KEPT)
        self._left: Recent[None] = Recent(LEFT_NODES_KEPT)
        self._ended: dict[str, None] = {}
        self._ended_kept = ended_kept
        self._by_suffix: dict[str, str] = {}
        self._order: list[JobPlace] = []
        self._progress: Recent[Progress] = Recent(_OTHERS_KEPT)
        self._failures: Recent[Failure] = Recent(_OTHERS_KEPT)
        self._checkpoints: Recent[tuple[Checkpoint, ...]] = Recent(_OTHERS_KEPT)
        self._advice: Recent[Advice] = Recent(_OTHERS_KEPT)
        self._flags: Recent[tuple[Flag, ...]] = Recent(_OTHERS_KEPT)

    @classmethod
    def of(cls, facts: LiveFacts) -> Live:
        """The model of these facts; derived values are computed again."""
        found = cls()
        found.jobs = dict(facts.jobs)
        found.nodes = dict(facts.nodes)
        found._left.update(facts.left)
        found.approvals = dict(facts.approvals)
        found.outcomes.update(facts.outcomes)
        found._ended = dict(facts.ended)
        found._by_suffix = {suffix_of(job_id): job_id for job_id in facts.jobs}
        found._order = sorted(place_of(job) for job in facts.jobs.values())
        found._progress.update(facts.progress)
        found._failures.update(facts.failures)
        found._checkpoints.update(facts.checkpoints)
        found._advice.update(facts.advice)
        found._flags.update(facts.flags)
        return found

    def facts(self) -> LiveFacts:
        """A copy of all that was folded; later events do not change it."""
        silent = {
            node_id: replace(node, heard_at=None, heartbeat=b"")
            for node_id, node in self.nodes.items()
        }
        return LiveFacts(
            jobs=dict(self.jobs),
            nodes=silent,
            left=dict(self._left),
            outcomes=dict(self.outcomes),
            ended=dict(self._ended),
            progress=dict(self._progress),
            failures=dict(self._failures),
            checkpoints=dict(self._checkpoints),
            advice=dict(self._advice),
            flags=dict(self._flags),
            approvals=dict(self.approvals),
        )

    def apply(self, envelope: Envelope) -> None:
        """Folds one event; types without a handler are ignored."""
        self._on(envelope.data, envelope.time)

    def take_heartbeat(self, node_id: str, at: datetime, heartbeat: bytes) -> None:
        """Stores a node's heartbeat as bytes; a query decodes it."""
        node = self.nodes.get(node_id)
        if node is not None:
            self.nodes[node_id] = replace(node, heard_at=at, heartbeat=heartbeat)

    def details(self, job_id: str) -> JobDetails | None:
        """A job with its progress, failure, checkpoints and flags."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        return JobDetails(
            job,
            self._progress.get(progress_key(job.team, job_id)),
            self._failures.get(job_id),
            self._checkpoints.get(job_id, ()),
            self._advice.get(job_id),
            self._flags.get(job_id, ()),
        )

    def newest_first(self, before: JobPlace | None = None) -> Iterator[LiveJob]:
        """Jobs, newest first; `before`: only those after this place in that order."""
        end = len(self._order) if before is None else bisect_left(self._order, before)
        for index in range(end - 1, -1, -1):
            yield self.jobs[self._order[index][1]]

    def active(self) -> list[LiveJob]:
        """Jobs that have not ended."""
        return [job for job in self.jobs.values() if not job.ended]

    def by_suffix(self, suffix: str, team: str) -> LiveJob | None:
        """The team's job whose id has this suffix."""
        job = self.jobs.get(self._by_suffix.get(suffix, ""))
        return job if job is not None and job.team == team else None

    def placed(self) -> dict[str, list[tuple[LiveJob, NodeAssignment]]]:
        """The gangs of each node, with their GPUs there."""
        found: dict[str, list[tuple[LiveJob, NodeAssignment]]] = {}
        for job in self.jobs.values():
            for part in job.nodes:
                found.setdefault(part.node_id, []).append((job, part))
        return found

    def used_gpus(self) -> dict[str, int]:
        """GPUs that are allocated to each team's gangs now."""
        used: dict[str, int] = {}
        for job in self.jobs.values():
            if job.nodes:
                used[job.team] = used.get(job.team, 0) + job.allocated_gpus
        return used

    def _change(self, job_id: str, **fields: object) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        changed = replace(job, **fields)  # type: ignore[arg-type]
        self.jobs[job_id] = changed
        if changed.ended:
            self._end(job_id)

    def _add(self, job: LiveJob) -> None:
        known = self.jobs.get(job.job_id)
        if known is None or place_of(known) != place_of(job):
            if known is not None:
                self._leave_order(known)
            insort(self._order, place_of(job))
        self.jobs[job.job_id] = job
        self._by_suffix[suffix_of(job.job_id)] = job.job_id
        if job.ended:
            self._end(job.job_id)

    def _end(self, job_id: str) -> None:
        self._ended.setdefault(job_id)
        while len(self._ended) > self._ended_kept:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._forget(oldest)

    def _leave_order(self, job: LiveJob) -> None:
        del self._order[bisect_left(self._order, place_of(job))]

    def _forget(self, job_id: str) -> None:
        job = self.jobs.pop(job_id)
        self._leave_order(job)
        self._progress.pop(progress_key(job.team, job_id), None)
        for others in (self._failures, self._checkpoints, self._advice, self._flags):
            others.pop(job_id, None)
        if self._by_suffix.get(suffix_of(job_id)) == job_id:
            del self._by_suffix[suffix_of(job_id)]

    @singledispatchmethod
    def _on(self, event: Event, at: datetime) -> None:
        """Most types change nothing here."""

    @_on.register
    def _(self, event: JobSubmitted, at: datetime) -> None:
        refused = f"{event.type}/{event.job_id}" in self.outcomes
        if event.job_id not in self.jobs and not refused:
            self._add(_submitted(event.job_id, event.spec, event.user, at))

    @_on.register
    def _(self, event: JobAdmitted, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or job.state == REJECTED or not job.admitted:
            fresh = _submitted(event.job_id, event.spec, event.user, event.submitted_at)
            if job is not None and job.queued:
                return
            self._ended.pop(event.job_id, None)
            self._add(replace(fresh, admitted=True, reason=event.note or "admitted"))

    @_on.register
    def _(self, event: JobRejected, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None and (job.queued or job.admitted):
            return
        if job is None:
            job = LiveJob(
                event.job_id, event.team or "", event.name or event.job_id, event.user,
                REJECTED, event.submitted_at,
            )  # fmt: skip
        self._add(
            replace(
                job, state=REJECTED, reason=event.reason, errors=event.errors, ended_at=at,
                digest=event.digest, waiting_since=None,
            )
        )  # fmt: skip

    @_on.register
    def _(self, event: JobQueued, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or not job.queued:
            fresh = _submitted(event.job_id, event.spec, event.user, event.submitted_at)
            cancelled = job.cancelled if job is not None else False
            self._ended.pop(event.job_id, None)
            self._add(
                replace(fresh, admitted=True, queued=True, cancelled=cancelled, waiting_since=at)
            )

    @_on.register
    def _(self, event: JobWaiting, at: datetime) -> None:
        waiting = Waiting(code=event.code, message=event.message, since=at)
        self._change(event.job_id, waiting=waiting)

    @_on.register
    def _(self, event: JobReprioritized, at: datetime) -> None:
        self._change(event.job_id, priority=event.priority)

    @_on.register
    def _(self, event: GangAllocated, at: datetime) -> None:
        self._change(
            event.job_id, attempt=event.attempt, nodes=event.nodes, waiting=None,
            waiting_since=None, stopping=None, allocated_at=at,
            checkpoint_interval_s=event.checkpoint_interval_s,
        )  # fmt: skip
        self._checkpoints.change(
            event.job_id, lambda rows: checkpoint_rows.of_gang(rows, event.attempt, event.resume)
        )

    @_on.register
    def _(self, event: GangStopping, at: datetime) -> None:
        stopping = Stopping(reason=event.reason.value, deadline=event.deadline)
        self._change(event.job_id, stopping=stopping)

    @_on.register
    def _(self, event: GangReleased, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None:
            total = job.gpu_seconds + event.gpu_seconds
            self._change(event.job_id, nodes=(), stopping=None, gpu_seconds=total)

    @_on.register
    def _(self, event: JobStateChanged, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        if event.state.terminal:
            self._checkpoints.change(event.job_id, checkpoint_rows.of_ended)
        pending = event.state in {JobState.PENDING, JobState.PREEMPTED}
        running = event.state is JobState.RUNNING
        self._change(
            event.job_id,
            state=event.state.value,
            reason=event.reason,
            waiting=job.waiting if pending else None,
            waiting_since=(job.waiting_since or at) if pending else None,
            started_at=job.started_at or (at if running else None),
            ended_at=at if event.state.terminal else None,
        )

    @_on.register
    def _(self, event: CancelAdmitted, at: datetime) -> None:
        self._change(event.job_id, cancelled=True)
        self._decided(event)

    @_on.register(PriorityAdmitted)
    @_on.register(RestoreAdmitted)
    @_on.register(PinAdmitted)
    @_on.register(DrainAdmitted)
    @_on.register(TeamConfigured)
    def _(
        self,
        event: PriorityAdmitted | RestoreAdmitted | PinAdmitted | DrainAdmitted | TeamConfigured,
        at: datetime,
    ) -> None:
        self._decided(event)

    @_on.register
    def _(self, event: RequestRefused, at: datetime) -> None:
        self._decided(event, event.reason)
        if event.request == JobSubmitted.type:
            self.outcomes.put(f"{event.request}/{event.target}", Outcome(event.reason))
            job = self.jobs.get(event.target)
            if job is not None and not (job.admitted or job.queued or job.ended):
                self._forget(event.target)

    def _decided(self, event: Answer, refused: str | None = None) -> None:
        if event.request_id and event.request_source in {"", SOURCE}:
            self.outcomes.put(event.request_id, Outcome(refused))

    @_on.register
    def _(self, event: SnapshotApproved, at: datetime) -> None:
        use = DataUse(event.snapshot, event.project, event.purpose)
        self.approvals[use] = Approval(**use._asdict(), user=event.user, approved_at=at)
        self._decided(event)

    @_on.register
    def _(self, event: SnapshotWithdrawn, at: datetime) -> None:
        self.approvals.pop(DataUse(event.snapshot, event.project, event.purpose), None)
        self._decided(event)

    @_on.register
    def _(self, event: NodeAdmitted, at: datetime) -> None:
        self._show_node(LiveNode(event.node, since=at))

    @_on.register
    def _(self, event: NodeUnfit, at: datetime) -> None:
        why = "; ".join(event.reasons)
        self._show_node(LiveNode(event.node, cordoned="unfit", why=why, since=event.checked_at))

    @_on.register
    def _(self, event: NodeDistrusted, at: datetime) -> None:
        why = event.reason or f"it failed {event.failures} times"
        self._change_node(event.node_id, why=why)

    @_on.register
    def _(self, event: WorkerStraggling, at: datetime) -> None:
        told = (event.job_id, event.attempt, event.message)
        self._change_node(event.node_id, straggler=told)

    @_on.register(NodeCordoned)
    def _(self, event: NodeCordoned, at: datetime) -> None:
        if event.node_id not in self.nodes or self._is_unfit(event.node_id):
            return
        if event.reason == "outdated":
            self._change_node(event.node_id, outdated=event.oldest_accepted or "")
            return
        self._change_node(event.node_id, cordoned="move" if event.move_jobs else event.reason)
        if event.reason == "leaving":
            forgotten = self._left.put(event.node_id, None)
            if forgotten is not None:
                del self.nodes[forgotten]

    @_on.register(NodeUncordoned)
    def _(self, event: NodeUncordoned, at: datetime) -> None:
        if not self._is_unfit(event.node_id):
            self._change_node(event.node_id, cordoned="", why="")

    @_on.register(NodeSuspected)
    def _(self, event: NodeSuspected, at: datetime) -> None:
        self._change_node(event.node_id, silence="suspected")

    @_on.register(NodeFailed)
    def _(self, event: NodeFailed, at: datetime) -> None:
        node = self.nodes.get(event.node_id)
        if node is not None and node.info.incarnation == event.incarnation:
            self._change_node(event.node_id, silence="failed")

    @_on.register(NodeRecovered)
    def _(self, event: NodeRecovered, at: datetime) -> None:
        self._change_node(event.node_id, silence="")

    def _show_node(self, fresh: LiveNode) -> None:
        """Stores the node, unless it was found unfit later: topics come in any order."""
        known = self.nodes.get(fresh.info.node_id)
        heard_at = None
        if known is not None:
            heard_at = known.heard_at
            old = known.since is not None and fresh.since is not None and fresh.since < known.since
            if old and "unfit" in {known.cordoned, fresh.cordoned}:
                return
        self.nodes[fresh.info.node_id] = replace(fresh, heard_at=heard_at)
        self._left.pop(fresh.info.node_id, None)

    def _is_unfit(self, node_id: str) -> bool:
        """Whether the scheduler's event is about an earlier incarnation of the node."""
        node = self.nodes.get(node_id)
        return node is not None and node.cordoned == "unfit"

    def _change_node(self, node_id: str, **fields: object) -> None:
        node = self.nodes.get(node_id)
        if node is not None:
            self.nodes[node_id] = replace(node, **fields)  # type: ignore[arg-type]

    @_on.register
    def _(self, event: GangFailed, at: datetime) -> None:
        self._failures.put(event.job_id, Failure.model_validate(event, from_attributes=True))

    @_on.register
    def _(self, event: JobFlagged, at: datetime) -> None:
        known = self._flags.get(event.job_id, ())
        flag = Flag.model_validate(event, from_attributes=True)
        if flag not in known:
            self._flags.put(event.job_id, (*known, flag))

    @_on.register(CheckpointSaved)
    @_on.register(CheckpointCommitted)
    @_on.register(CheckpointAbandoned)
    @_on.register(EffectDeferred)
    def _(self, event: checkpoint_rows.OnItsWay, at: datetime) -> None:
        known = self._checkpoints.get(event.job_id, ())
        rows = checkpoint_rows.after(known, event, at)
        if rows != known:
            self._checkpoints.put(event.job_id, rows)

    @_on.register
    def _(self, event: CheckpointCorrupted, at: datetime) -> None:
        reason = f"{event.key}: {event.reason}"
        self._change_row(event, lambda row: checkpoint_rows.gone(row, "corrupted", reason))

    @_on.register
    def _(self, event: CheckpointDeleted, at: datetime) -> None:
        def deleted(row: Checkpoint) -> Checkpoint:
            if row.status == "corrupted":  # the status that matters stays
                return row
            return checkpoint_rows.gone(row, "deleted", event.reason)

        self._change_row(event, deleted)

    @_on.register
    def _(self, event: CheckpointScrubbed, at: datetime) -> None:
        self._change_row(event, lambda row: replace(row, scrubbed_at=at))

    @_on.register
    def _(self, event: CheckpointPinChanged, at: datetime) -> None:
        self._change_row(event, lambda row: replace(row, pinned=event.pinned))

    @_on.register(PromotionRequested)
    @_on.register(CheckpointPromoted)
    @_on.register(PromotionRefused)
    def _(
        self, event: PromotionRequested | CheckpointPromoted | PromotionRefused, at: datetime
    ) -> None:
        reason = event.reason if isinstance(event, PromotionRefused) else ""
        told = {PromotionRequested: "asked", CheckpointPromoted: "promoted"}
        fresh = told.get(type(event), "refused")
        self._change_row(
            event,
            lambda row: replace(
                row, promotion=fresh, promotion_run=event.run, promotion_reason=reason
            ),
        )

    def _change_row(
        self,
        event: CheckpointCorrupted
        | CheckpointDeleted
        | CheckpointScrubbed
        | CheckpointPinChanged
        | PromotionRequested
        | CheckpointPromoted
        | PromotionRefused,
        change: Callable[[Checkpoint], Checkpoint],
    ) -> None:
        place = (event.attempt, event.step)
        self._checkpoints.change(
            event.job_id,
            lambda rows: tuple(
                change(row) if (row.attempt, row.step) == place else row for row in rows
            ),
        )

    @_on.register
    def _(self, event: IntervalAdvised, at: datetime) -> None:
        facts = event.model_dump(exclude={"job_id", "suspected_at"})
        self._advice.put(event.job_id, Advice(**facts, advised_at=at))

    @_on.register
    def _(self, event: RunProgress, at: datetime) -> None:
        job = self.jobs.get(event.run_id)
        if job is not None and job.team != event.team:
            return  # the run is not that team's
        key = progress_key(event.team, event.run_id)
        known = self._progress.get(key)
        if known is None or (event.attempt, event.step) >= (known.attempt, known.step):
            self._progress.put(key, _progress(event, at))


def _progress(event: RunProgress, at: datetime) -> Progress:
    return Progress(
        attempt=event.attempt,
        step=event.step,
        metrics=dict(islice(event.metrics.items(), METRICS_OF_A_RUN)),
        at=at,
        step_s=event.step_s,
        tokens_per_s=event.tokens_per_s,
        data_wait_share=event.data_wait_share,
        stalled_since=event.stalled_since,
    )


def _submitted(job_id: str, spec: JobSpec, user: str, at: datetime) -> LiveJob:
    return LiveJob(
        job_id=job_id,
        team=spec.team,
        name=spec.name,
        user=user,
        state=JobState.PENDING.value,
        submitted_at=at,
        spec=spec.without_diff(),
        digest=spec.digest(),
        priority=spec.priority,
        gpus=spec.resources.gpus,
        reason="waits for admission",
        waiting_since=at,
    )
