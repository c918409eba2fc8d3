"""Decisions about one job: admission, requests, its ranks' reports, its failure and its end."""

from __future__ import annotations

from datetime import timedelta

from gangline_scheduler.core import save_waits
from gangline_scheduler.core.checkpoints import fail_without_start
from gangline_scheduler.core.evolve.jobs import ENDED_CHECKPOINTS_KEPT
from gangline_scheduler.core.model import Gang, Job, Member
from gangline_scheduler.core.plan import Plan
from gangline_schemas.events.checkpoints import CheckpointAbandoned
from gangline_schemas.events.faults import FailureCause, GangFailed
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangMemberChanged,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    ReleaseReason,
    ResumePointChanged,
    StopReason,
    Verdict,
)
from gangline_schemas.events.workers import ExitReason, WorkerExited, WorkerStarted
from gangline_schemas.job import RESUME_PROBLEM, JobState

_GONE = frozenset(
    {
        ExitReason.STOPPED,
        ExitReason.FAILED,
        ExitReason.FENCED,
        ExitReason.LEASE_LOST,
        ExitReason.LAUNCH_FAILED,
    }
)


def admit(plan: Plan, admitted: JobAdmitted) -> None:
    """Queue the job, with the checkpoint of another run to begin from if it names one.

    A checkpoint that is named but not known fails the job: it never silently begins from zero.
    """
    job_id, spec = admitted.job_id, admitted.spec
    if job_id in plan.state.jobs or job_id in plan.state.ended:
        return
    start = admitted.start
    base, problem = _base(plan, admitted) if start is None else _registered(plan, admitted, start)
    plan.add(
        job_id,
        JobQueued(
            job_id=job_id,
            spec=spec,
            user=admitted.user,
            submitted_at=admitted.submitted_at,
            waits_since=admitted.waits_since,
        ),
    )
    plan.add(
        job_id,
        JobStateChanged(
            job_id=job_id,
            attempt=0,
            previous=JobState.PENDING,
            state=JobState.PENDING,
            reason="queued",
        ),
    )
    if problem:
        plan.move(job_id, JobState.FAILED, problem)
    elif base is not None:
        plan.add(job_id, ResumePointChanged(job_id=job_id, checkpoint=base))


def _registered(
    plan: Plan, admitted: JobAdmitted, start: CheckpointRef
) -> tuple[CheckpointRef | None, str]:
    """A registered checkpoint, also if its run is forgotten; or that the run has lost it."""
    source = admitted.spec.resume_from or ""
    run = plan.state.jobs.get(source) or plan.state.ended.get(source)
    complete = run is not None and len(run.checkpoints) < ENDED_CHECKPOINTS_KEPT
    if run is not None and complete and start not in run.checkpoints:
        return (
            None,
            f"{RESUME_PROBLEM}run {source} has no committed checkpoint of step {start.step}",
        )
    return start, ""


def _base(plan: Plan, admitted: JobAdmitted) -> tuple[CheckpointRef | None, str]:
    source, wanted = admitted.spec.resume_from, admitted.spec.checkpoint.resume
    if source is None:
        if wanted.isdigit():
            return None, f"checkpoint.resume: there is no checkpoint of step {wanted} in a new job"
        return None, ""
    active, ended = plan.state.jobs.get(source), plan.state.ended.get(source)
    known = active or ended
    if known is None or known.team != admitted.spec.team:
        return None, f"{RESUME_PROBLEM}run {source} is not known to the scheduler"
    points = known.checkpoints
    if wanted.isdigit():
        points = tuple(point for point in points if point.step == int(wanted))
        if not points:
            return (
                None,
                f"{RESUME_PROBLEM}run {source} has no committed checkpoint of step {wanted}",
            )
    if not points:
        return None, f"{RESUME_PROBLEM}run {source} has no committed checkpoint"
    return points[-1], ""


def cancel(plan: Plan, job_id: str) -> None:
    """End the job: at once if no rank was ever seen, else once its ranks have stopped."""
    job = plan.state.jobs.get(job_id)
    if job is None or job.state.terminal:
        return
    if job.gang is None:
        plan.move(job_id, JobState.CANCELLED, "cancelled while it waited")
        return
    _stop(plan, job, StopReason.CANCELLED)


def reprioritize(plan: Plan, job_id: str, priority: int) -> None:
    """Change the priority; it counts from the next pass on."""
    job = plan.state.jobs.get(job_id)
    if job is not None and not job.state.terminal and job.priority != priority:
        plan.add(job_id, JobReprioritized(job_id=job_id, priority=priority))


def restore(plan: Plan, job_id: str, step: int) -> None:
    """Let the next attempt start from this step; a live gang stops for it.

    Ignored when no such committed checkpoint is known (the gateway answered so), or when the
    job stands exactly there already.
    """
    job = plan.state.jobs.get(job_id)
    if job is None or job.state.terminal:
        return
    points = [point for point in job.checkpoints if point.step == step]
    if not points:
        return
    cancelling = job.gang is not None and _stopping_for(job.gang, StopReason.CANCELLED)
    there = job.restored and job.resume == points[-1]
    if cancelling or there:
        return
    plan.add(job_id, ResumePointChanged(job_id=job_id, checkpoint=points[-1], restored=True))
    if job.gang is not None:
        _stop(plan, plan.state.jobs[job_id], StopReason.RESTORE)


def drain_gang(plan: Plan, job_id: str) -> None:
    """A node of the gang will go: checkpoint, stop, and wait for other nodes."""
    job = plan.state.jobs[job_id]
    if job.gang is not None and job.gang.stop is None:
        _stop(plan, job, StopReason.DRAIN)


def resize_gang(plan: Plan, job_id: str, to: int) -> None:
    """Resize a gang: checkpoint, stop, and start again with at most so many GPUs."""
    job = plan.state.jobs[job_id]
    if job.gang is not None and job.gang.stop is None:
        _stop(plan, job, StopReason.RESIZE, resize_to=to)


def started(plan: Plan, report: WorkerStarted) -> None:
    """A rank runs: the first makes the job initializing, the last makes it running."""
    found = _live_rank(plan, report.job_id, report.attempt, report.rank)
    if found is None or found[1].members[report.rank] is not Member.UNSEEN:
        return
    _note(plan, report.job_id, report.attempt, report.rank, Member.STARTED)


def exited(plan: Plan, report: WorkerExited) -> None:
    """A rank is gone in an orderly way, or in any way while its gang stops.

    All other failures are the fault manager's to judge: its gang.failed decides.
    """
    found = _live_rank(plan, report.job_id, report.attempt, report.rank)
    if found is None or found[1].members[report.rank].ended:
        return
    gang = found[1]
    if report.reason is ExitReason.FINISHED:
        status = Member.FINISHED
    elif report.reason is ExitReason.STOPPED or (gang.stop is not None and report.reason in _GONE):
        status = Member.STOPPED
    else:
        return
    _note(plan, report.job_id, report.attempt, report.rank, status)
    _end_if_all_ended(plan, report.job_id)


def failed(plan: Plan, verdict: GangFailed, save_wait: timedelta) -> None:
    """The fault manager's verdict on the live attempt: start again, or end the job.

    A gang that was stopping ends the way it was stopped. One that has saved since its last commit
    starts again when that is committed, `save_wait` later at most (save_waits.py).
    """
    job = plan.state.jobs.get(verdict.job_id)
    if job is None or job.gang is None or job.gang.attempt != verdict.attempt:
        return
    if job.gang.waits_for_save:
        return
    stop = job.gang.stop
    decided = {StopReason.CANCELLED, StopReason.MAX_RUNTIME, StopReason.RESTORE}
    if stop is not None and (stop.reason in decided or verdict.action == "restart"):
        finish_stop(plan, job.job_id)
        return
    if verdict.action == "fail":
        plan.move(job.job_id, JobState.FAILED, verdict.message)
        plan.release(plan.state.jobs[job.job_id], ReleaseReason.FAILED)
        return
    if not save_waits.begin(plan, job, verdict, save_wait):
        _start_again(plan, job, verdict)


def restart_if_saved(plan: Plan, job_id: str) -> None:
    """Start a failed gang again that waited for its checkpoint, if nothing is left to wait for."""
    job = _waiting(plan, job_id)
    if job is not None and save_waits.is_over(plan, job):
        finish_stop(plan, job_id)


def restart_without(plan: Plan, event: CheckpointAbandoned) -> None:
    """Start a failed gang again that waited for this checkpoint."""
    job = _waiting(plan, event.job_id)
    if job is not None and save_waits.gives_up(job, event):
        finish_stop(plan, event.job_id)


def _waiting(plan: Plan, job_id: str) -> Job | None:
    job = plan.state.jobs.get(job_id)
    waits = job is not None and job.gang is not None and job.gang.waits_for_save
    return job if waits else None


def yield_cpus(plan: Plan, job_id: str, node_id: str) -> None:
    """A job without GPUs gives its CPUs to a gang with GPUs at once, and waits again."""
    job = plan.state.jobs[job_id]
    if job.gang is not None and job.gang.stop is not None:
        finish_stop(plan, job_id)
        return
    why = f"{node_id} has no CPUs or memory left for it beside gangs with GPUs"
    plan.move(job_id, JobState.PREEMPTED, why)
    plan.release(plan.state.jobs[job_id], ReleaseReason.PREEMPTED)
    _wait_again(plan, job_id, f"waits again: {why}")


def exceed_runtime(plan: Plan, job: Job) -> None:
    """The job has had GPUs for longer than it may: save, stop, fail."""
    _stop(plan, job, StopReason.MAX_RUNTIME)


def finish_stop(plan: Plan, job_id: str) -> None:
    """The gang has stopped, or its deadline has passed: end the job or let it wait again."""
    job = plan.state.jobs[job_id]
    stop = job.gang.stop if job.gang is not None else None
    reason = stop.reason if stop is not None else StopReason.DRAIN
    match reason:
        case StopReason.CANCELLED:
            plan.move(job_id, JobState.CANCELLED, "cancelled by request")
            plan.release(plan.state.jobs[job_id], ReleaseReason.CANCELLED)
        case StopReason.MAX_RUNTIME:
            limit = job.spec.max_runtime_hours
            plan.move(job_id, JobState.FAILED, f"max_runtime_hours reached ({limit:g} h)")
            plan.release(plan.state.jobs[job_id], ReleaseReason.FAILED)
        case StopReason.RESTORE:
            step = job.resume.step if job.resume is not None else 0
            plan.release(job, ReleaseReason.RESTARTING)
            _wait_again(plan, job_id, f"restored to step {step}")
        case StopReason.PREEMPTED | StopReason.DRAIN | StopReason.DEFRAGMENT | StopReason.RESIZE:
            plan.move(job_id, JobState.PREEMPTED, reason.value)
            plan.release(plan.state.jobs[job_id], ReleaseReason.PREEMPTED)
            _wait_again(plan, job_id, f"waits again after {reason.value}")
        case StopReason.FAILED if stop is not None and stop.verdict is not None:
            _start_again(plan, job, stop.verdict)


def _start_again(plan: Plan, job: Job, verdict: GangFailed | Verdict) -> None:
    """Let the GPUs of a gang that failed go, and its job wait for others as its verdict says.

    A failure of a node is never waited out (save_waits.py), so no kept `Verdict` is of one.
    """
    of_node = isinstance(verdict, GangFailed) and verdict.cause is FailureCause.NODE
    plan.release(
        job,
        ReleaseReason.RESTARTING,
        avoid_nodes=verdict.avoid_nodes,
        avoid_required=of_node,
        left_out=verdict.left_out,
    )
    _wait_again(plan, job.job_id, verdict.message)


def _wait_again(plan: Plan, job_id: str, why: str) -> None:
    plan.move(job_id, JobState.PENDING, why)
    fail_without_start(plan, job_id)


def _stop(plan: Plan, job: Job, reason: StopReason, *, resize_to: int | None = None) -> None:
    """Ask the gang to stop. One of which no rank was seen, or which failed, ends now."""
    gang = job.gang
    if gang is None or (gang.stop is not None and not _supersedes(reason, gang.stop.reason)):
        return
    plan.stop(job, reason, resize_to=resize_to)
    if gang.unseen or gang.waits_for_save:
        finish_stop(plan, job.job_id)


def _supersedes(new: StopReason, old: StopReason) -> bool:
    """Cancelling beats all; a restore beats being moved; else the first reason stays."""
    strength = {StopReason.CANCELLED: 3, StopReason.MAX_RUNTIME: 2, StopReason.RESTORE: 1}
    return strength.get(new, 0) > strength.get(old, 0)


def _stopping_for(gang: Gang, reason: StopReason) -> bool:
    return gang.stop is not None and gang.stop.reason is reason


def _live_rank(plan: Plan, job_id: str, attempt: int, rank: int) -> tuple[Job, Gang] | None:
    job = plan.state.jobs.get(job_id)
    if job is None or job.gang is None or job.gang.attempt != attempt:
        return None
    if rank >= job.gang.world_size:
        return None
    return job, job.gang


def _note(plan: Plan, job_id: str, attempt: int, rank: int, status: Member) -> None:
    event = GangMemberChanged.model_validate(
        {"job_id": job_id, "attempt": attempt, "rank": rank, "status": status.value}
    )
    plan.add(job_id, event)
    job = plan.state.jobs[job_id]
    if job.gang is None or job.gang.stop is not None:
        return
    if job.state is JobState.SCHEDULED:
        plan.move(job_id, JobState.INITIALIZING)
    if job.gang is not None and Member.UNSEEN not in job.gang.members:
        plan.move(job_id, JobState.RUNNING)


def _end_if_all_ended(plan: Plan, job_id: str) -> None:
    job = plan.state.jobs[job_id]
    if job.gang is None or job.gang.waits_for_save:
        return
    members = job.gang.members
    if Member.UNSEEN in members or Member.STARTED in members:
        return
    finished = Member.STOPPED not in members
    overruled = _stopping_for(job.gang, StopReason.CANCELLED) or _stopping_for(
        job.gang, StopReason.RESTORE
    )
    if finished and not overruled:
        plan.move(job_id, JobState.SUCCEEDED)
        plan.release(plan.state.jobs[job_id], ReleaseReason.SUCCEEDED)
    else:
        finish_stop(plan, job_id)
