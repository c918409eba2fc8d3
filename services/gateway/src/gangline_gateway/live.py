"""The gateway's own facts, folded from all topics: what no decider's state keeps. Pure.

The rows of jobs, also of ended ones, outcomes of requests, progress, checkpoints, and notes and
heartbeats of nodes. `LiveView` reads them beside the followed states of scheduler and quota. At a
start these states may be ahead of the facts, so no handler looks at them.

`Live.apply` takes one event of any topic. Topics may come in any relative order, and a record may
come twice. Memory is bounded: the newest `ENDED_KEPT` ended jobs stay (history is in ClickHouse),
and each other map removes its oldest entries.
"""

# ruff: noqa: ARG002 - the handlers of all events share one signature.
from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import fields, replace
from datetime import datetime
from functools import singledispatchmethod
from itertools import islice

from gangline_gateway import checkpoint_rows
from gangline_gateway.live_model import (
    JobPlace,
    LiveFacts,
    LiveJob,
    NodeNotes,
    Outcome,
    Progress,
    Silence,
)
from gangline_gateway.publish import SOURCE
from gangline_gateway.recent import Recent
from gangline_schemas.api.checkpoints import Advice, Checkpoint
from gangline_schemas.api.data import Approval
from gangline_schemas.api.jobs import REJECTED, Failure, Flag
from gangline_schemas.base import Event
from gangline_schemas.data_use import DataUse
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import IntervalAdvised
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
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    NodeAdmitted,
    NodeUncordoned,
)
from gangline_schemas.events.studies import StudyCreated, StudyEnding, StudyRefused
from gangline_schemas.events.workers import NodeUnfit
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.job_ids import suffix_of

Admitted = (
    CancelAdmitted | PriorityAdmitted | RestoreAdmitted | PinAdmitted | DrainAdmitted
    | TeamConfigured | StudyCreated | StudyEnding
)  # fmt: skip
Answer = Admitted | RequestRefused | StudyRefused | SnapshotApproved | SnapshotWithdrawn
ENDED_KEPT = 10_000
OUTCOMES_KEPT = 10_000
NODES_KEPT = 10_000
_OTHERS_KEPT = 3 * ENDED_KEPT
METRICS_OF_A_RUN = 64


class Live:
    """The fold. Not thread-safe: the tail guards it, and readers take a LiveView.

    The attributes that have a field in LiveFacts are stored in snapshots.
    """

    def __init__(self, ended_kept: int = ENDED_KEPT) -> None:
        self.jobs: dict[str, LiveJob] = {}
        self.ended: dict[str, None] = {}
        self.notes: Recent[str, NodeNotes] = Recent(NODES_KEPT)
        self.approvals: dict[DataUse, Approval] = {}
        self.outcomes: Recent[str, Outcome] = Recent(OUTCOMES_KEPT)
        self.progress: Recent[str, Progress] = Recent(_OTHERS_KEPT)
        self.failures: Recent[str, Failure] = Recent(_OTHERS_KEPT)
        self.checkpoints: Recent[str, tuple[Checkpoint, ...]] = Recent(_OTHERS_KEPT)
        self.advice: Recent[str, Advice] = Recent(_OTHERS_KEPT)
        self.flags: Recent[str, tuple[Flag, ...]] = Recent(_OTHERS_KEPT)
        self.heartbeats: Recent[str, tuple[datetime, bytes]] = Recent(NODES_KEPT)
        self._ended_kept = ended_kept
        self._by_suffix: dict[str, str] = {}
        self._order: list[JobPlace] = []

    @classmethod
    def of(cls, facts: LiveFacts) -> Live:
        """The model of these facts; derived values are computed again."""
        found = cls()
        for field in fields(LiveFacts):
            getattr(found, field.name).update(getattr(facts, field.name))
        found._by_suffix = {suffix_of(job_id): job_id for job_id in facts.jobs}
        found._order = sorted(job.place for job in facts.jobs.values())
        return found

    def facts(self) -> LiveFacts:
        """A copy of all that was folded; later events do not change it."""
        return LiveFacts(**{one.name: dict(getattr(self, one.name)) for one in fields(LiveFacts)})

    def apply(self, envelope: Envelope) -> None:
        """Folds one event; types without a handler are ignored."""
        self._on(envelope.data, envelope.time)

    def take_heartbeat(self, node_id: str, at: datetime, heartbeat: bytes) -> None:
        """Stores a node's heartbeat as bytes; a query decodes it."""
        self.heartbeats.put(node_id, (at, heartbeat))

    def _change(self, job_id: str, **changes: object) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        changed = replace(job, **changes)  # type: ignore[arg-type]
        self.jobs[job_id] = changed
        if changed.ended:
            self._end(job_id)

    def _add(self, job: LiveJob) -> None:
        known = self.jobs.get(job.job_id)
        if known is None or known.place != job.place:
            if known is not None:
                self._leave_order(known)
            insort(self._order, job.place)
        self.jobs[job.job_id] = job
        self._by_suffix[suffix_of(job.job_id)] = job.job_id
        if job.ended:
            self._end(job.job_id)

    def _end(self, job_id: str) -> None:
        self.ended.setdefault(job_id)
        while len(self.ended) > self._ended_kept:
            oldest = next(iter(self.ended))
            del self.ended[oldest]
            self._forget(oldest)

    def _leave_order(self, job: LiveJob) -> None:
        del self._order[bisect_left(self._order, job.place)]

    def _forget(self, job_id: str) -> None:
        job = self.jobs.pop(job_id)
        self._leave_order(job)
        self.progress.pop(progress_key(job.team, job_id), None)
        for others in (self.failures, self.checkpoints, self.advice, self.flags):
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
            self.ended.pop(event.job_id, None)
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
                digest=event.digest,
            )
        )  # fmt: skip

    @_on.register
    def _(self, event: JobQueued, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or not job.queued:
            fresh = _submitted(event.job_id, event.spec, event.user, event.submitted_at)
            self.ended.pop(event.job_id, None)
            self._add(replace(fresh, admitted=True, queued=True))

    @_on.register
    def _(self, event: JobReprioritized, at: datetime) -> None:
        self._change(event.job_id, priority=event.priority)

    @_on.register
    def _(self, event: GangAllocated, at: datetime) -> None:
        interval_s = event.checkpoint_interval_s
        self._change(event.job_id, attempt=event.attempt, checkpoint_interval_s=interval_s)
        rows = self.checkpoints.get(event.job_id, ())
        self._set_rows(event.job_id, checkpoint_rows.of_gang(rows, event.attempt, event.resume))

    @_on.register
    def _(self, event: GangReleased, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None:
            self._change(
                event.job_id,
                gpu_seconds=job.gpu_seconds + event.gpu_seconds,
                released=max(job.released, event.attempt),
            )

    @_on.register
    def _(self, event: JobStateChanged, at: datetime) -> None:
        job = self.jobs.get(event.job_id)
        if job is None:
            return
        if event.state.terminal:
            rows = self.checkpoints.get(event.job_id, ())
            self._set_rows(event.job_id, checkpoint_rows.of_ended(rows))
        running = event.state is JobState.RUNNING
        self._change(
            event.job_id,
            state=event.state.value,
            reason=event.reason,
            started_at=job.started_at or (at if running else None),
            ended_at=at if event.state.terminal else None,
        )

    @_on.register
    def _(self, event: Admitted, at: datetime) -> None:
        self._decided(event)

    @_on.register
    def _(self, event: StudyRefused, at: datetime) -> None:
        self._decided(event, event.reason)

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
        self._note(event.node.node_id, admitted_at=at, silence=None, why="", straggler=None)

    @_on.register
    def _(self, event: NodeUnfit, at: datetime) -> None:
        self._note(event.node.node_id, unfit=event)

    @_on.register
    def _(self, event: NodeDistrusted, at: datetime) -> None:
        self._note(event.node_id, why=event.reason or f"it failed {event.failures} times")

    @_on.register
    def _(self, event: NodeUncordoned, at: datetime) -> None:
        self._note(event.node_id, why="")

    @_on.register
    def _(self, event: WorkerStraggling, at: datetime) -> None:
        self._note(event.node_id, straggler=(event.job_id, event.attempt, event.message))

    @_on.register
    def _(self, event: NodeSuspected | NodeFailed, at: datetime) -> None:
        word: Silence = "failed" if isinstance(event, NodeFailed) else "suspected"
        self._note(event.node_id, silence=(event.incarnation, word))

    @_on.register
    def _(self, event: NodeRecovered, at: datetime) -> None:
        self._note(event.node_id, silence=None)

    def _note(self, node_id: str, **changes: object) -> None:
        known = self.notes.get(node_id, NodeNotes())
        self.notes.put(node_id, replace(known, **changes))  # type: ignore[arg-type]

    @_on.register
    def _(self, event: GangFailed, at: datetime) -> None:
        self.failures.put(event.job_id, Failure.model_validate(event, from_attributes=True))

    @_on.register
    def _(self, event: JobFlagged, at: datetime) -> None:
        known = self.flags.get(event.job_id, ())
        flag = Flag.model_validate(event, from_attributes=True)
        if flag not in known:
            self.flags.put(event.job_id, (*known, flag))

    @_on.register
    def _(self, event: checkpoint_rows.CheckpointEvent, at: datetime) -> None:
        known = self.checkpoints.get(event.job_id, ())
        self._set_rows(event.job_id, checkpoint_rows.after(known, event, at))

    def _set_rows(self, job_id: str, rows: tuple[Checkpoint, ...]) -> None:
        if rows != self.checkpoints.get(job_id, ()):
            self.checkpoints.put(job_id, rows)

    @_on.register
    def _(self, event: IntervalAdvised, at: datetime) -> None:
        facts = event.model_dump(exclude={"job_id", "suspected_at"})
        self.advice.put(event.job_id, Advice(**facts, advised_at=at))

    @_on.register
    def _(self, event: RunProgress, at: datetime) -> None:
        job = self.jobs.get(event.run_id)
        if job is not None and job.team != event.team:
            return  # the run is not that team's
        key = progress_key(event.team, event.run_id)
        known = self.progress.get(key)
        if known is None or (event.attempt, event.step) >= (known.attempt, known.step):
            self.progress.put(key, _progress(event, at))


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
    )
