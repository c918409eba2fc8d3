"""The checkpoint service's decisions.

1. gang.allocated: from here on only this attempt can commit; older open checkpoints are abandoned.
2. The first report of a part: the checkpoint has begun. The reports themselves are soft
   (reports.py): a takeover reads them again from there.
   - checkpoint.node.saved: with all ranks there, the nodes' disks hold a whole checkpoint.
   - checkpoint.shard.written: with all ranks there, the state requests a verification.
   - checkpoint.shard.lost, instead: it is abandoned.
3. Verified: committed, unless a newer attempt came meanwhile. Retention then deletes older ones.
4. Any other result: abandoned. If the store is away, the verification is tried again.
5. worker.exited that names a damaged object: that checkpoint is corrupted, and no job starts from
   it.
6. job.resume.changed: retention may delete older checkpoints, newer ones not yet. A user's restore
   protects that checkpoint for the next attempt.
7. A commit, and an attempt of a job that has saved before: the interval that follows from the
   costs and failures so far is advised, when it is news.
   After checkpoint.requested (a sign of a failure): a shorter one, for an hour.
8. job.resume.changed and a good end, where the job wants checkpoints promoted: a run will validate
   the one that the scheduler knows. The end of that run: promoted, or refused with its reason.
9. checkpoint.pin.admitted: retained until it is unpinned. The registry's versions pin theirs.
10. Tick: the committed checkpoint that was read longest ago is read again, when that is due.
11. A minute before an ended job's late parts are not waited for any more: checkpoints in the store
    of which no rank reported a part are abandoned, so that their objects are deleted.

The commit record is in the store before checkpoint.committed is in the log. A crash between the two
leaves a record that does not count: consumers trust the event alone, and the next process verifies
again, finds its own record, and writes the event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import (
    BaseDecider,
    BatchEnd,
    Decision,
    EffectDone,
    Fold,
    Input,
    Observed,
    Recall,
    Tick,
)
from gangline_bus.plan import Plan
from gangline_checkpoints.core import (
    advice,
    attempts,
    effects,
    invariants,
    outcomes,
    parts,
    pins,
    promotions,
    reports,
    scrubs,
)
from gangline_checkpoints.core.closing import abandon
from gangline_checkpoints.core.evolve import apply, fold, try_out
from gangline_checkpoints.core.model import Job, StepId
from gangline_checkpoints.core.policy.scrubbing import Scrubbing
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import GRACE_S, CheckpointPlan, CheckpointState
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.events.faults import CheckpointRequested
from gangline_schemas.events.quota import JobRejected, PinAdmitted
from gangline_schemas.events.registry import VersionBegun, VersionRefused, VersionRegistered
from gangline_schemas.events.scheduling import (
    GangAllocated,
    GangReleased,
    JobStateChanged,
    ResumePointChanged,
)
from gangline_schemas.events.workers import WorkerExited


@dataclass(slots=True)
class CheckpointDecider(BaseDecider[CheckpointState, Reports]):
    """Implements `Decider[CheckpointState, Reports]`."""

    name: str = "checkpoint-service"
    log: Topic = Topic.CHECKPOINTS
    inputs: tuple[Topic, ...] = (
        Topic.SCHEDULING, Topic.WORKERS, Topic.QUOTA, Topic.FAULTS, Topic.REGISTRY,
    )  # fmt: skip
    fold: Fold[CheckpointState] = fold
    scrubbing: Scrubbing = field(default_factory=Scrubbing)

    def initial(self) -> CheckpointState:
        """No job is known."""
        return CheckpointState()

    def initial_soft(self) -> Reports:
        """No part was reported."""
        return Reports()

    def decide(
        self, state: CheckpointState, soft: Reports, item: Input, now: datetime
    ) -> Sequence[Decision]:
        """The events that follow from one input; [] for foreign or known ones."""
        plan = Plan(state, soft, now, try_out)
        match item:
            case Tick():
                _abandon_stale(plan)
                scrubs.begin(plan, self.scrubbing)
            case EffectDone():
                outcomes.decide(plan, item)
            case Received():
                event = item.envelope.data
                if isinstance(event, parts.Report):
                    parts.decide(plan, event, (item.partition, item.offset))
                else:
                    _take(plan, event, item.envelope.time)
            case _:
                pass
        return plan.decisions

    def evolve(self, state: CheckpointState, decision: Decision, at: datetime) -> CheckpointState:
        """The state after an own event."""
        apply(state, decision.event, at)
        return state

    def observe(
        self,
        state: CheckpointState,
        soft: Reports,
        observed: Observed,
        now: datetime,
    ) -> Reports:
        """Keep what an input reports of a part (reports.py)."""
        if isinstance(observed, Tick):
            soft.now = now
        elif not isinstance(observed, BatchEnd):
            reports.observe(soft, state.jobs, observed)
        return soft

    def recall(self, state: CheckpointState) -> Recall:
        """The reports of open checkpoints."""
        return reports.recalled(state.jobs[job_id] for job_id in state.active)

    def effects(self, state: CheckpointState, soft: Reports) -> Mapping[str, object]:
        """Verifications, deletions, surveys and the one scrub that are wanted, by key."""
        return effects.wanted(state, soft)

    def check(self, state: CheckpointState) -> list[str]:
        """See invariants.py."""
        return invariants.violations(state)


def _take(plan: CheckpointPlan, event: Event, at: datetime) -> None:
    match event:
        case WorkerExited(damaged_object=str() as key):
            attempts.damaged(plan, event, key)
        case CheckpointRequested():
            advice.of_sign(plan, event)
        case PinAdmitted():
            pins.change(plan, event)
        case VersionBegun() | VersionRegistered() | VersionRefused():
            pins.follow(plan, event)
        case JobRejected():
            promotions.judge(plan, event.job_id, event)
        case GangAllocated():
            attempts.note(plan, event, at)
        case ResumePointChanged():
            attempts.follow(plan, event)
        case GangReleased():
            attempts.release(plan, event, at)
        case JobStateChanged() if event.state.terminal:
            attempts.end_job(plan, event, at)
            promotions.judge(plan, event.job_id, event)
        case _:
            pass


def _abandon_stale(plan: CheckpointPlan) -> None:
    """Parts of ended or unknown attempts are not waited for for ever.

    Nor is a verification whose reports were no longer in the stream when this process took over.
    """
    state = plan.state
    for job_id in sorted(state.active):
        job = state.jobs[job_id]
        for step_id in sorted(job.open):
            if step_id != job.verifying:
                reason = _stale(job, step_id, plan.now)
            elif plan.soft.of(job_id, step_id).complete(job.open[step_id].written):
                reason = None
            else:
                reason = "the reports of its ranks are no longer on gangline.workers"
            if reason is not None:
                abandon(plan, job_id, step_id, reason)


def _stale(job: Job, step_id: StepId, now: datetime) -> str | None:
    since = job.open[step_id].opened_at
    if step_id.attempt <= job.attempt:
        if job.live or job.ended_at is None:
            return None
        since = max(since, job.ended_at)
    if (now - since).total_seconds() < GRACE_S:
        return None
    if step_id.attempt > job.attempt:
        return f"attempt {step_id.attempt} was never allocated"
    return "the attempt ended before all ranks had written"
