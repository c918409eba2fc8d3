"""The platform's own log as a workload: what came from outside, and what each job needed.

From outside, at the moments of the log: teams and budgets, nodes that join, fail, leave and are
drained, submissions, changed priorities, cancels of jobs that waited.
The need of a job is its progress (history.py) when it succeeded, failed for a reason of its own, or
was cancelled while it ran. Recorded failures hit it after the same GPU time as recorded, and its
checkpoints come at the same progress. A failure for which one of its nodes was gone belongs to the
node: it hits the gangs that run there.
Of some jobs the log does not hold the need
- cancelled while it waited: it runs, if it gets GPUs, until it is cancelled at that moment;
- ended by its `max_runtime_hours`: so it is again;
- had not ended when the log did: as long as it said (`expected_runtime_hours`), if that is more
  than it had run, else beyond the end of the log.
Left out: jobs that failed in the moment in which they were queued, and restores by users.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Literal

from gangline_schemas.base import Event
from gangline_schemas.events.faults import NodeFailed, NodeRecovered
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    PriorityAdmitted,
    TeamBudgetChanged,
    TeamConfigured,
)
from gangline_schemas.events.scheduling import (
    CordonReason,
    JobQueued,
    JobReprioritized,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
    NodeUncordoned,
    ReleaseReason,
    StopReason,
    TeamBudgetNoted,
    TeamNoted,
)
from gangline_schemas.events.workers import NodeInfo, NodeJoined, NodeLeaving
from gangline_schemas.job import JobSpec, JobState
from gangline_simulator.history import (
    Attempt,
    History,
    JobHistory,
    Logged,
    Nodes,
    Progress,
    place_of,
    progress_of,
    read_history,
)

Fate = Literal["succeeds", "fails", "cancelled"]
REPLAY = "replay"
ACCEPTED = "1"
"""The release of agents that the log accepts: the `oldest_agents` of a rerun's limits."""
SAVE_S, SAVE_LARGE_S, LARGE_GPUS = 30.0, 60.0, 8
"""How long a gang is taken to stop (the second: above 8 GPUs) of which no stop was recorded."""

_INSTANT_S = 1e-3


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: after how much time with GPUs, and which nodes it named."""

    allocated_s: float
    near: tuple[str, ...]
    required: bool


@dataclass(frozen=True, slots=True)
class Need:
    """The need of a job. Times in seconds; `work_s` and `saves_at` are progress of the whole gang.

    `work_s`: until it meets its fate; inf: not before the log ends. `starts_s`: from each
    allocation to the start of all ranks, of a gang that ended before: longer than it was there;
    `stops_s`: from each request to stop to the end. For those that were not recorded their medians
    stand. `saves`: it saves when it is asked to stop. `keeps_itself`: no stop or failure loses it
    anything.
    """

    spec: JobSpec
    work_s: float
    fate: Fate = "succeeds"
    failures: tuple[Failure, ...] = ()
    saves_at: tuple[float, ...] = ()
    starts_s: tuple[float, ...] = ()
    stops_s: tuple[float, ...] = ()
    saves: bool = True
    keeps_itself: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang."""
        return self.spec.resources.gpus

    def start_s(self, attempt: int) -> float:
        """From the allocation of an attempt (from 1) to the start of its ranks."""
        if attempt <= len(self.starts_s):
            return self.starts_s[attempt - 1]
        return median(self.starts_s) if self.starts_s else 0.0

    def stop_s(self, stops: int) -> float:
        """From the request to stop to the end, after so many stops before."""
        if stops < len(self.stops_s):
            return self.stops_s[stops]
        usual = SAVE_S if self.gpus <= LARGE_GPUS else SAVE_LARGE_S
        return median(self.stops_s) if self.stops_s else min(usual, self.spec.stop_grace_seconds)


@dataclass(frozen=True, slots=True)
class Recording:
    """A log as a workload: `inputs` in the order of the log, `needs` by job."""

    history: History
    inputs: tuple[Logged, ...]
    needs: dict[str, Need]

    @property
    def start(self) -> datetime:
        """The first event's time."""
        return self.history.start

    @property
    def end(self) -> datetime:
        """When the log was cut: nothing is known of later."""
        return self.history.end


def read_recording(log: Sequence[Logged], end: datetime | None = None) -> Recording:
    """The content of a log, up to `end`. Raises ValueError for an empty one.

    Jobs without GPUs are left out: no decision about GPUs depends on them.
    """
    log = _with_gpus(log)
    history = read_history(log, end)
    needs = {
        job.job_id: _need(job, history.end)
        for job in history.jobs.values()
        if job.attempts or job.ended_at != job.queued_at
    }
    wanted = {None, *needs}
    nodes = Nodes()
    inputs: list[Logged] = []
    for place, (at, event) in enumerate(log):
        if at > history.end:
            break
        inputs += [Logged(at, given) for given in _about_node(log, place, nodes)]
        given = _outside(event, history)
        if given is not None and getattr(given, "job_id", None) in wanted:
            inputs.append(Logged(at, given))
        nodes.note(event)
    return Recording(history, tuple(inputs), needs)


def _with_gpus(log: Sequence[Logged]) -> Sequence[Logged]:
    without = {
        event.job_id
        for _, event in log
        if isinstance(event, JobQueued) and event.spec.resources.gpus == 0
    }
    if not without:
        return log
    return [logged for logged in log if getattr(logged.event, "job_id", None) not in without]


def _outside(event: Event, history: History) -> Event | None:
    """The input about a job or team that led to this event; None: there is none."""
    if isinstance(event, JobStateChanged):
        ended = _ended_waiting(event, history)
        return CancelAdmitted(job_id=event.job_id, user=REPLAY) if ended else None
    if isinstance(event, TeamBudgetNoted):
        return TeamBudgetChanged(
            team=event.team, month=event.month, exhausted=event.exhausted, spent_gpu_hours=0.0
        )
    if isinstance(event, JobQueued):
        return JobAdmitted(
            job_id=event.job_id,
            spec=_alone(event.spec),
            user=event.user,
            submitted_at=event.submitted_at,
        )
    if isinstance(event, JobReprioritized):
        return PriorityAdmitted(job_id=event.job_id, priority=event.priority, user=REPLAY)
    return TeamConfigured(config=event.config) if isinstance(event, TeamNoted) else None


def _about_node(log: Sequence[Logged], place: int, nodes: Nodes) -> Sequence[Event]:
    """The inputs about a node that led to the event there."""
    event = log[place].event
    if isinstance(event, NodeAdmitted):
        return _admitted(event.node, nodes, _cordons_after(log, place, event.node.node_id))
    if isinstance(event, NodeCordoned):
        return _cordoned(event, nodes)
    if not isinstance(event, NodeUncordoned):
        return []
    node_id, incarnation = event.node_id, event.incarnation
    if nodes.incarnation(node_id) == incarnation:
        return [DrainAdmitted(node_id=node_id, drain=False, user=REPLAY)]
    return [NodeRecovered(node_id=node_id, incarnation=incarnation, was="failed")]


def _admitted(node: NodeInfo, nodes: Nodes, cordons: Collection[CordonReason]) -> Sequence[Event]:
    """It joins, its agent reloads, or it recovers. `cordons`: those of the same decision.

    The log says whether its agent is outdated: its release in the rerun is `ACCEPTED`, or none.
    """
    release = None if "outdated" in cordons else ACCEPTED
    joined = NodeJoined(node=node.model_copy(update={"release": release}))
    node_id, incarnation = node.node_id, node.incarnation
    same = nodes.incarnation(node_id) == incarnation
    if same and nodes.gone(node_id, incarnation) and "failed" not in cordons:
        return [joined, NodeRecovered(node_id=node_id, incarnation=incarnation, was="failed")]
    return [joined]


def _cordons_after(log: Sequence[Logged], place: int, node_id: str) -> set[CordonReason]:
    """Why this node is cordoned in the same decision, right after it was admitted there."""
    found: set[CordonReason] = set()
    for later in range(place + 1, len(log)):
        at, event = log[later]
        if at != log[place].at or not isinstance(event, NodeCordoned) or event.node_id != node_id:
            break
        found.add(event.reason)
    return found


def _cordoned(event: NodeCordoned, nodes: Nodes) -> Sequence[Event]:
    node_id, incarnation = event.node_id, event.incarnation
    match event.reason:
        case "failed":
            return [NodeFailed(node_id=node_id, incarnation=incarnation, reason="silent")]
        case "leaving":
            return [NodeLeaving(node_id=node_id, incarnation=incarnation, reason=REPLAY)]
        case "drain":
            moving = event.move_jobs
            return [DrainAdmitted(node_id=node_id, drain=True, move_jobs=moving, user=REPLAY)]
        case "outdated":
            known = nodes.info(node_id)
            return [] if known is None else _admitted(known, nodes, {event.reason})
        case "superseded":
            return []


def _ended_waiting(event: JobStateChanged, history: History) -> bool:
    """Whether a job ended while it had no GPUs."""
    job = history.jobs.get(event.job_id)
    if job is None or not event.state.terminal or event.state is JobState.SUCCEEDED:
        return False
    return _open_end(job)


def _open_end(job: JobHistory) -> bool:
    """Whether the log does not say what it needed, though it ended: it ended without GPUs."""
    ends = {ReleaseReason.FAILED, ReleaseReason.CANCELLED, ReleaseReason.SUCCEEDED}
    return not job.attempts or job.attempts[-1].reason not in ends


def _alone(spec: JobSpec) -> JobSpec:
    """Without the other run that it began from: that one may not be there yet under a policy."""
    if spec.resume_from is None:
        return spec
    resume = "auto" if spec.checkpoint.resume.isdigit() else spec.checkpoint.resume
    checkpoint = spec.checkpoint.model_copy(update={"resume": resume})
    alone = {"resume_from": None, "validates": False, "checkpoint": checkpoint}
    return spec.model_copy(update=alone)


def _need(job: JobHistory, end: datetime) -> Need:
    made = progress_of(job, end)
    work_s, fate = _fate(job, made)
    return Need(
        spec=_alone(job.spec),
        work_s=work_s,
        fate=fate,
        failures=_failures(job, end),
        saves_at=_saves_at(job, made, end),
        starts_s=_starts_s(job, end),
        stops_s=tuple(
            (attempt.released_at - attempt.stop_at).total_seconds()
            for attempt in job.attempts
            if attempt.released_at and attempt.stop_at and attempt.running_at
        ),
        saves=_saves(job, made),
        keeps_itself=made.keeps_itself,
    )


def _starts_s(job: JobHistory, end: datetime) -> tuple[float, ...]:
    """How long the ranks of each attempt took to start.

    A gang that ended before takes the median of the others, but longer than it was there: else a
    rerun would have started ranks, and waited until they had stopped.
    """
    known = [_start_s(attempt) for attempt in job.attempts]
    measured = [start_s for start_s in known if start_s is not None]
    usual_s = median(measured) if measured else 0.0
    return tuple(
        start_s if start_s is not None else max(usual_s, attempt.allocated_s(end) + _INSTANT_S)
        for start_s, attempt in zip(known, job.attempts, strict=True)
    )


def _start_s(attempt: Attempt) -> float | None:
    """None: not known. One that succeeded and said no start made all its progress: 0."""
    if attempt.running_at is not None:
        return (attempt.running_at - attempt.allocated_at).total_seconds()
    return 0.0 if attempt.reason is ReleaseReason.SUCCEEDED else None


def _fate(job: JobHistory, made: Progress) -> tuple[float, Fate]:
    reached = made.reached[-1] if made.reached else 0.0
    if job.ended_at is None:
        says_s = (job.spec.expected_runtime_hours or 0.0) * 3600
        return (says_s if says_s > reached else math.inf), "succeeds"
    if job.state is JobState.SUCCEEDED:
        return reached, "succeeds"
    if _open_end(job) or job.attempts[-1].stop is StopReason.MAX_RUNTIME:
        return math.inf, "succeeds"
    return reached, "cancelled" if job.state is JobState.CANCELLED else "fails"


def _failures(job: JobHistory, end: datetime) -> tuple[Failure, ...]:
    allocated_s = 0.0
    found: list[Failure] = []
    for attempt in job.attempts:
        allocated_s += attempt.allocated_s(end)
        failed = attempt.reason is ReleaseReason.RESTARTING and attempt.stop is None
        if failed and not attempt.lost:
            found.append(Failure(allocated_s, *attempt.failed_near))
    return tuple(found)


def _saves_at(job: JobHistory, made: Progress, end: datetime) -> tuple[float, ...]:
    """The progress at which it saved unasked, each once."""
    places = {
        place_of(job, index, made.starts[index], at, end)
        for index, attempt in enumerate(job.attempts)
        for at, _ in attempt.saved
        if at <= attempt.until(end)  # at the end too: a drain may stop it for what it just saved
    }
    return tuple(sorted(place for place in places if place > 0))


def _saves(job: JobHistory, made: Progress) -> bool:
    """Whether it saved when it was last asked to stop; one that never was is taken to."""
    if job.spec.checkpoint.resume == "never":
        return False
    asked = [
        made.starts[index + 1] > made.reached[index] - _INSTANT_S
        for index, attempt in enumerate(job.attempts[:-1])
        if attempt.reason is ReleaseReason.PREEMPTED and attempt.running_at is not None
    ]
    return asked[-1] if asked else True
