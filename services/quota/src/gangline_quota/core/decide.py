"""Quota's decisions: which jobs may run, and how much they used.

1. requests: a job is admitted or rejected in one sentence with numbers (admission.py). Requests for
   a job are forwarded in order after its admission, or refused with the reason.
2. admin: teams are configured if the tree stays sound (configure.py); uses of data are approved
   (approvals.py); drains are forwarded.
3. checkpoints: a run that validates a checkpoint is admitted like a submitted one. The id of a job
   with a committed checkpoint is never given to another job.
   studies, pipelines: jobs of trials and steps are admitted and ended like those of users
   (JobRequest, JobStopRequest).
4. scheduling: an allocated gang starts a meter, its release charges it (ledger.py); an ended job is
   closed.
5. ticks: one event when a budget is spent, and one when it is open again (budgets.py).

Cost per input: constant whatever the number of jobs. A submission costs the teams with allocated
GPUs. A tick with budgets costs the teams and the live gangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pydantic import TypeAdapter, ValidationError

from gangline_bus.codec import Received
from gangline_bus.decision import BaseDecider, Decision, Input, Refused, Tick
from gangline_quota.core import admission, approvals, budgets, configure, invariants, ledger
from gangline_quota.core.evolve import fold
from gangline_quota.core.state import ActiveJob, EndedJob, RequestRef, State
from gangline_schemas.base import Event, Identifier
from gangline_schemas.catalog import Topic
from gangline_schemas.clocks import believed
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.events.admin import (
    NodeDrainRequested,
    SnapshotApprovalRequested,
    TeamConfigureRequested,
    TeamsConfigureRequested,
)
from gangline_schemas.events.checkpoints import CheckpointCommitted, PromotionRequested
from gangline_schemas.events.pipelines import StepJobRequested
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    JobIdTaken,
    JobRejected,
    PinAdmitted,
    PriorityAdmitted,
    RequestRefused,
    RestoreAdmitted,
)
from gangline_schemas.events.requests import (
    CheckpointPinRequested,
    JobPriorityRequested,
    JobRequest,
    JobRestoreRequested,
    JobStopRequest,
    JobSubmitted,
)
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobStateChanged
from gangline_schemas.events.studies import TrialJobRequested
from gangline_schemas.secrets import redact

_IDENTIFIER: TypeAdapter[str] = TypeAdapter(Identifier)
_MAX_ERRORS = 20
_UNNAMED = RequestRef("", "")
PROMOTION = "promotion"
"""The user of runs that validate checkpoints, as their jobs asked for."""
_KEPT = "checkpoints of a job that ended are kept under it"

AboutJob = JobStopRequest | JobPriorityRequested | JobRestoreRequested


class Quota(BaseDecider[State, None]):
    """The decider of gangline.quota."""

    name = "quota"
    log = Topic.QUOTA
    inputs: tuple[Topic, ...] = (
        Topic.ADMIN, Topic.REQUESTS, Topic.SCHEDULING, Topic.CHECKPOINTS, Topic.STUDIES,
        Topic.PIPELINES,
    )  # fmt: skip
    fold = fold

    def __init__(self, data_approvals: ApprovalRule = ApprovalRule.OFF) -> None:
        self._data_approvals = data_approvals

    def initial(self) -> State:
        """No teams, no jobs."""
        return State()

    def decide(  # noqa: C901, PLR0911 - a dispatch by type
        self,
        state: State,
        soft: None,  # noqa: ARG002 - it has none
        item: Input,
        now: datetime,
    ) -> Sequence[Decision]:
        """See the module's docstring; a repeated request leads to nothing."""
        if isinstance(item, Tick):
            return budgets.flips(state, now)
        if not isinstance(item, Received):
            return _unreadable(state, item) if isinstance(item, Refused) else []
        envelope = item.envelope
        ref = RequestRef(envelope.id, envelope.source)
        match envelope.data:
            case JobRequest() | PromotionRequested() as submitted:
                at = believed(envelope.time, now)
                return _submitted(state, submitted, ref, at, self._data_approvals)
            case JobStopRequest() | JobPriorityRequested() | JobRestoreRequested() as request:
                return _about_job(state, request, ref)
            case TeamConfigureRequested() | TeamsConfigureRequested() as request:
                return configure.configured(state, request, ref)
            case SnapshotApprovalRequested() as request:
                return approvals.decided(state, request, ref)
            case CheckpointPinRequested() | NodeDrainRequested() as request:
                return _forwarded(state, request, ref)
            case CheckpointCommitted(job_id=job_id):
                return _taken(state, job_id)
            case GangAllocated() as allocated:
                return ledger.metered(state, allocated, envelope.time)
            case GangReleased() as released:
                return ledger.charged(state, released, envelope.time)
            case JobStateChanged() as changed:
                return ledger.closed(state, changed)
            case _:
                return []

    def check(self, state: State) -> list[str]:
        """See invariants.py. Cost: the live gangs and the teams."""
        return invariants.broken(state)


def _submitted(
    state: State,
    submitted: JobRequest | PromotionRequested,
    ref: RequestRef,
    at: datetime,
    rule: ApprovalRule,
) -> list[Decision]:
    if isinstance(submitted, PromotionRequested):
        submitted = JobSubmitted(job_id=submitted.run, spec=submitted.spec, user=PROMOTION)
    job_id = submitted.job_id
    digest = submitted.spec.digest()
    known = state.known(job_id)
    if known is not None or state.kept_under(job_id):
        return _repeated(state, known, submitted, digest, ref)
    start = submitted.start if isinstance(submitted, StepJobRequested) else None
    waits_since = submitted.waits_since if isinstance(submitted, TrialJobRequested) else None
    reason = _not_a_users(submitted) or admission.never_runs(
        state, job_id, submitted.spec, rule, has_start=start is not None
    )
    if reason is None:
        admitted = JobAdmitted(
            job_id=job_id,
            spec=submitted.spec.without_diff(),
            user=submitted.user,
            submitted_at=at,
            **ref._asdict(),
            note=admission.must_wait(state, submitted.spec),
            start=start,
            waits_since=waits_since,
        )
        return [Decision(job_id, admitted)]
    rejected = JobRejected(
        job_id=job_id,
        reason=reason,
        team=submitted.spec.team,
        name=submitted.spec.name,
        user=submitted.user,
        submitted_at=at,
        digest=digest,
        **ref._asdict(),
    )
    return [Decision(job_id, rejected)]


def _not_a_users(submitted: JobRequest) -> str | None:
    if isinstance(submitted, JobSubmitted) and submitted.spec.trial is not None:
        return "trial: must not be given: the studies service sets it for the jobs of its trials"
    return None


def _repeated(
    state: State,
    known: ActiveJob | EndedJob | None,
    submitted: JobRequest,
    digest: str,
    ref: RequestRef,
) -> list[Decision]:
    """The same record again, or the same spec while the job lives, leads to nothing."""
    job_id = submitted.job_id
    if ref.key in state.requests or (known is not None and ref.key == known.request):
        return []
    if known is None:
        reason = f"job id '{job_id}' is taken: {_KEPT}; choose another id"
    elif known.digest != digest:
        reason = f"job id '{job_id}' is taken by a job with another spec; choose another id"
    elif isinstance(known, EndedJob):
        reason = f"job '{job_id}' was submitted before and has ended: {known.outcome}"
    else:
        return []
    return [_refused(submitted.type, job_id, reason, submitted.user, ref)]


def _taken(state: State, job_id: str) -> list[Decision]:
    """Retention always keeps the newest checkpoint, so one that is committed says it for good."""
    job = state.active.get(job_id) or state.ended.get(job_id)
    if job is None or job.saved:
        return []
    return [Decision(job_id, JobIdTaken(job_id=job_id))]


def _unreadable(state: State, refused: Refused) -> list[Decision]:
    """A submission that cannot be read is answered under its subject, if that can be a job id."""
    if refused.event_type != JobSubmitted.type or not _is_identifier(refused.subject):
        return []
    job_id, error = refused.subject, refused.error
    problems = "; ".join(f"{item.field}: {item.message}" for item in error.fields[:3])
    reason = redact(f"the job spec is not valid: {problems or error.reason}")
    if job_id in state.rejected:
        return []
    if state.known(job_id) is not None or state.kept_under(job_id):
        return [_refused(JobSubmitted.type, job_id, reason)]
    errors = tuple(
        item.model_copy(update={"message": redact(item.message)})
        for item in error.fields[:_MAX_ERRORS]
    )
    rejected = JobRejected(job_id=job_id, reason=reason, errors=errors, submitted_at=refused.time)
    return [Decision(job_id, rejected)]


def _about_job(state: State, request: AboutJob, ref: RequestRef) -> list[Decision]:
    if ref.key in state.requests:
        return []
    job = state.active.get(request.job_id)
    if job is None:
        reason = _not_active(state, request.job_id)
        return [_refused(request.type, request.job_id, reason, request.user, ref)]
    admitted: Event
    match request:
        case JobStopRequest(job_id=job_id, user=user):
            if job.cancelled:
                return []
            admitted = CancelAdmitted(job_id=job_id, user=user, **ref._asdict())
        case JobPriorityRequested(job_id=job_id, user=user, priority=priority):
            if job.priority == priority:
                return []
            admitted = PriorityAdmitted(
                job_id=job_id, user=user, priority=priority, **ref._asdict()
            )
        case JobRestoreRequested(job_id=job_id, user=user, step=step):
            admitted = RestoreAdmitted(job_id=job_id, user=user, step=step, **ref._asdict())
    return [Decision(request.job_id, admitted)]


def _not_active(state: State, job_id: str) -> str:
    ended = state.over(job_id)
    if state.kept_under(job_id):
        return f"job '{job_id}' has already ended: {_KEPT}"
    if ended is None:
        return f"job '{job_id}' is not known"
    return f"job '{job_id}' has already ended: {ended.outcome}"


def _forwarded(
    state: State, request: CheckpointPinRequested | NodeDrainRequested, ref: RequestRef
) -> list[Decision]:
    """Unseen: nodes are the scheduler's, and checkpoints, also of ended jobs, their service's."""
    if ref.key in state.requests:
        return []
    if isinstance(request, NodeDrainRequested):
        drain = DrainAdmitted(
            node_id=request.node_id,
            drain=request.drain,
            move_jobs=request.move_jobs,
            reason=request.reason,
            user=request.user,
            **ref._asdict(),
        )
        return [Decision(request.node_id, drain)]
    job_id = request.job_id
    if state.known(job_id) is None and not state.kept_under(job_id):
        reason = _not_active(state, job_id)
        return [_refused(request.type, job_id, reason, request.user, ref)]
    pin = PinAdmitted(
        job_id=job_id,
        step=request.step,
        pinned=request.pinned,
        user=request.user,
        attempt=request.attempt,
        **ref._asdict(),
    )
    return [Decision(job_id, pin)]


def _refused(
    request: str, target: str, reason: str, user: str = "unknown", ref: RequestRef = _UNNAMED
) -> Decision:
    return Decision(
        target,
        RequestRefused(request=request, target=target, reason=reason, user=user, **ref._asdict()),
    )


def _is_identifier(text: str) -> bool:
    try:
        _IDENTIFIER.validate_python(text)
    except ValidationError:
        return False
    return True
