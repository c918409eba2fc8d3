"""Decisions about gangs: which attempt is live, why it failed, and that it fails only once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from operator import itemgetter

from gangline_faults.core import incidents
from gangline_faults.core.lemons import distrust
from gangline_faults.core.model import Blame, Failure, Gang, Health, JobHistory
from gangline_faults.core.policy.budget import Attempt, judge, used_after_commit
from gangline_faults.core.policy.classify import Rule, classify, describe
from gangline_faults.core.policy.last_words import death_signal
from gangline_faults.core.policy.left_out import in_words, leave_out
from gangline_faults.core.policy.limits import FaultLimits
from gangline_faults.core.policy.progress import Hang
from gangline_faults.core.policy.progress import describe as describe_hang
from gangline_faults.core.state import EARLY_EXITS, FaultPlan, FaultState
from gangline_schemas.clocks import near
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import (
    ExitNoted,
    FailureCause,
    FailureClass,
    GangFailed,
    GangUnwatched,
    GangWatched,
    JobProgressed,
)
from gangline_schemas.events.scheduling import GangAllocated, GangReleased, JobStateChanged
from gangline_schemas.events.workers import WorkerExited

GangEvent = GangAllocated | GangReleased | JobStateChanged | WorkerExited | CheckpointCommitted


def take(plan: FaultPlan, event: GangEvent, at: datetime, limits: FaultLimits) -> None:
    """Decide on an event about a gang or one of its ranks, written at `at`."""
    match event:
        case GangAllocated():
            _watch(plan, event, at, limits)
        case GangReleased():
            _release(plan, event)
        case JobStateChanged():
            if event.state.terminal:
                _end_job(plan, event, at)
            else:
                incidents.note_running(plan, event, at)
        case WorkerExited():
            _exit_of_rank(plan, event, limits)
        case CheckpointCommitted():
            _note_commit(plan, event, at, limits)


def _watch(plan: FaultPlan, event: GangAllocated, at: datetime, limits: FaultLimits) -> None:
    """A new attempt is live; it fails at once if a node or rank of it is known to be gone."""
    job_id, state = event.job_id, plan.state
    if job_id in state.ended or event.attempt <= state.attempts.get(job_id, 0):
        return
    watched = GangWatched(
        job_id=job_id,
        attempt=event.attempt,
        nodes=tuple(node.node_id for node in event.nodes),
        incarnations=tuple(node.incarnation for node in event.nodes),
        restart=event.spec.restart,
        team=event.team,
        # 0 of a gang without GPUs: its incidents cost no GPU time.
        world_size=sum(len(node.gpus) for node in event.nodes),
        allocated_at=at,
        resume_step=None if event.resume is None else event.resume.step,
    )
    early = [noted.exited for noted in state.early.get((job_id, event.attempt), ())]
    plan.add(job_id, watched)
    gang = plan.state.gangs[job_id]
    if lost := _lost_nodes(plan.state, gang):
        failure = Failure(
            FailureCause.NODE,
            FailureClass.NODE,
            f"node {lost[0]} was lost before its ranks started",
            node_id=lost[0],
            avoid_nodes=_still_gone(plan.state, lost),
        )
        fail(plan, job_id, gang, failure, limits)
    else:
        _explain(plan, job_id, gang, early, limits)


def _release(plan: FaultPlan, event: GangReleased) -> None:
    """The attempt is over; its failure count stays until the job ends."""
    gang = plan.state.gangs.get(event.job_id)
    if gang is not None and gang.attempt == event.attempt:
        plan.add(event.job_id, GangUnwatched(job_id=event.job_id, attempt=event.attempt))


def _note_commit(
    plan: FaultPlan, event: CheckpointCommitted, at: datetime, limits: FaultLimits
) -> None:
    """The job made progress: it sets the cost of its next failure and may refill its restarts."""
    job_id, ref = event.job_id, event.checkpoint
    history = plan.state.histories.get(job_id, JobHistory())
    known = -1 if history.committed_step is None else history.committed_step
    if ref.attempt > plan.state.attempts.get(job_id, 0):
        return
    if (ref.attempt, ref.step) <= (history.committed_attempt, known):
        return
    progressed = JobProgressed(
        job_id=job_id,
        attempt=ref.attempt,
        step=ref.step,
        committed_at=at,
        restarts_used=used_after_commit(history, limits),
    )
    plan.add(job_id, progressed)


def _end_job(plan: FaultPlan, event: JobStateChanged, at: datetime) -> None:
    """The job is over; all that was remembered of it goes."""
    attempt = plan.state.attempts.get(event.job_id)
    if attempt is None:
        return
    incidents.close_at_end(plan, event, at)
    plan.add(event.job_id, GangUnwatched(job_id=event.job_id, attempt=attempt, final=True))


def _exit_of_rank(plan: FaultPlan, exited: WorkerExited, limits: FaultLimits) -> None:
    """A rank is gone: nothing, a verdict, or a note that waits for the exit that explains it."""
    state = plan.state
    gang = state.gangs.get(exited.job_id)
    of_gang = gang is not None and gang.attempt == exited.attempt
    if gang is not None and of_gang and gang.failed:
        return  # each of a thousand ranks says why, and one verdict is enough
    if classify(exited) is None or exited.job_id in state.ended:
        return
    if gang is not None and of_gang:
        _explain(plan, exited.job_id, gang, [exited], limits)
        return
    if exited.attempt <= state.attempts.get(exited.job_id, 0):
        return
    # Its gang.allocated is on another topic and was not read yet: keep it until it is.
    known = [noted.exited for noted in state.early.get((exited.job_id, exited.attempt), ())]
    if len(known) < EARLY_EXITS and all(other.rank != exited.rank for other in known):
        plan.add(exited.job_id, ExitNoted(exited=exited, noted_at=plan.now))


def fail_gangs_on(
    plan: FaultPlan,
    gone: Mapping[tuple[str, str], str],
    limits: FaultLimits,
    *,
    avoid: bool,
    blame: bool = False,
) -> None:
    """One gang.failed for each live gang with ranks on a gone (node, incarnation): message.

    Cost: the nodes of the gangs on these nodes.
    """
    state = plan.state
    jobs = {job_id for node_id, _ in gone for job_id in state.placed.get(node_id, ())}
    hit = {
        job_id: (gang, here)
        for job_id, gang in ((job_id, state.gangs[job_id]) for job_id in jobs)
        if not gang.failed and (here := sorted(gone.keys() & gang.places))
    }
    for job_id, (gang, here) in sorted(hit.items(), key=itemgetter(0)):
        nodes = tuple(node_id for node_id, _ in here)
        failure = Failure(
            FailureCause.NODE,
            FailureClass.NODE,
            gone[here[0]],
            node_id=here[0][0],
            avoid_nodes=nodes if avoid else (),
            blamed_nodes=nodes if blame else (),
        )
        fail(plan, job_id, gang, failure, limits)


def fail_settled(
    plan: FaultPlan, settle_s: float, quiet: Collection[str], limits: FaultLimits
) -> None:
    """Stop waiting for a better explanation. `quiet` nodes have sent no recent heartbeat.

    A node that fell silent just before its peers lost it is avoided, and named as the cause: it
    will not be declared failed before the timeout.
    """
    for job_id in sorted(plan.state.settling):
        gang = plan.state.gangs[job_id]
        noted = gang.noted
        if noted is None:
            continue
        if near(noted.noted_at, plan.now, settle_s):
            continue
        rule = classify(noted.exited, gpus=gang.world_size > 0)
        if rule is None:  # cannot be: only failures are noted
            continue
        failure = _failure(rule, noted.exited)
        silent = tuple(node_id for node_id in sorted(set(gang.nodes)) if node_id in quiet)
        if silent and len(silent) < len(set(gang.nodes)):
            failure = Failure(
                FailureCause.NODE,
                FailureClass.NODE,
                f"{failure.message} (node {silent[0]} went silent)",
                node_id=silent[0],
                exited=noted.exited,
                avoid_nodes=silent,
                blamed_nodes=silent,
            )
        fail(plan, job_id, gang, failure, limits)


def forget_early(plan: FaultPlan, keep_s: float) -> None:
    """Drop exits of attempts that never became known."""
    for (job_id, attempt), noted in sorted(plan.state.early.items(), key=itemgetter(0)):
        if (plan.now - noted[0].noted_at).total_seconds() >= keep_s:
            plan.add(job_id, GangUnwatched(job_id=job_id, attempt=attempt))


def fail(plan: FaultPlan, job_id: str, gang: Gang, failure: Failure, limits: FaultLimits) -> None:
    """Decide the one gang.failed of an attempt, and what it means for incidents."""
    state, now = plan.state, plan.now
    exited, history = failure.exited, state.histories.get(job_id, JobHistory())
    last_step = incidents.last_step_of(
        plan.soft.gangs.get(job_id),
        gang.attempt,
        None if exited is None else exited.last_step,
    )
    ran_s = 0.0 if gang.since is None else (now - gang.since).total_seconds()
    verdict = judge(failure, gang.restart, history, Attempt(last_step, ran_s), limits)
    left_out = leave_out(failure, verdict)
    event = GangFailed(
        job_id=job_id,
        attempt=gang.attempt,
        cause=failure.cause,
        action=verdict.action,
        message=verdict.message + in_words(left_out),
        first_rank=None if exited is None else exited.rank,
        node_id=failure.node_id,
        exit_code=None if exited is None else exited.exit_code,
        signal=None if exited is None else death_signal(exited),
        avoid_nodes=failure.avoid_nodes,
        blamed_nodes=failure.blamed_nodes,
        restarts_used=verdict.restarts_used,
        restarts_max=gang.restart.max,
        failed_at=now,
        failure_class=failure.failure_class,
        review=failure.failure_class is FailureClass.DATA,
        team=gang.team,
        failures=history.failures + 1,
        restarts_idle=verdict.restarts_idle,
        world_size=gang.world_size,
        last_step=last_step,
        committed_step=history.committed_step,
        work_lost_s=_work_lost_s(state, job_id, gang, last_step, now),
        left_out=left_out,
    )
    incidents.close_at_failure(plan, job_id, last_step)
    plan.add(job_id, event)
    if event.action == "fail":
        incidents.close_failed(plan, event)
    if failure.blamed_nodes:
        blame = Blame(job_id, failure.failure_class, now)
        distrust(plan, failure.blamed_nodes, blame, limits)


def _work_lost_s(
    state: FaultState, job_id: str, gang: Gang, last_step: int | None, now: datetime
) -> float:
    """How long the attempt had trained since its last checkpoint, or since it began."""
    since = incidents.works_since(state.incidents.get(job_id), gang, last_step)
    history = state.histories.get(job_id)
    if since is not None and history is not None and history.committed_attempt == gang.attempt:
        since = max(since, history.committed_at or since)
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def hung(hang: Hang) -> Failure:
    """No rank makes progress. The node is not avoided: hangs are mostly of programs."""
    return Failure(FailureCause.HANG, FailureClass.HANG, describe_hang(hang), node_id=hang.node_id)


def _explain(
    plan: FaultPlan, job_id: str, gang: Gang, exits: list[WorkerExited], limits: FaultLimits
) -> None:
    if gang.failed:
        return
    gpus = gang.world_size > 0
    rules = [(rule, item) for item in exits if (rule := classify(item, gpus=gpus)) is not None]
    for rule, exited in rules:
        if not rule.collateral:
            fail(plan, job_id, gang, _failure(rule, exited), limits)
            return
    if rules and gang.noted is None:  # the first of those taken along stands for all
        plan.add(job_id, ExitNoted(exited=rules[0][1], noted_at=plan.now))


def _failure(rule: Rule, exited: WorkerExited) -> Failure:
    return Failure(
        rule.cause,
        rule.failure_class,
        describe(rule, exited),
        node_id=exited.node_id,
        exited=exited,
        avoid_nodes=(exited.node_id,) if rule.avoid_node else (),
        blamed_nodes=(exited.node_id,) if rule.avoid_node else (),
    )


def _lost_nodes(state: FaultState, gang: Gang) -> list[str]:
    """Nodes of the gang whose incarnation there is known to be gone."""
    lost = []
    for node_id, incarnation in zip(gang.nodes, gang.incarnations, strict=True):
        node = state.nodes.get(node_id)
        if node is None:
            continue
        gone = node.incarnation == incarnation and not node.health.live
        if gone or incarnation in node.past:
            lost.append(node_id)
    return lost


def _still_gone(state: FaultState, lost: list[str]) -> tuple[str, ...]:
    down = {Health.FAILED, Health.LEFT}
    return tuple(node_id for node_id in lost if state.nodes[node_id].health in down)
