"""Runs a recording through a scheduler: its own decide and evolve, in virtual time.

One moment, in this order
1. Due events of the running gangs: ranks that start, checkpoints, failures, ends of work, ends of
   stops. Their consequences in the same moment follow at once.
2. Inputs from outside in this moment, in the order of the log. A node that fails or comes back as
   another incarnation takes its gangs along.
3. A tick, at the multiples of `every_s` from the log's beginning on, while a job is active.
It ends with the log: nothing that would happen later is known.

The result is a log again: what this scheduler would have written. Progress, and what a stop or a
failure loses of it, is counted as history.py reads it.

Cost: that of the decisions; here O(log gangs) for each thing that happens and O(ranks) for each
start and end of a gang. Nothing reads a clock or a random source.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from gangline_bus.codec import Received
from gangline_bus.decision import Input, Tick
from gangline_scheduler.core.decide import Scheduler
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.faults import FailureCause, GangFailed, NodeFailed
from gangline_schemas.events.quota import CancelAdmitted
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    GangStopping,
    ReleaseReason,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined, WorkerExited, WorkerStarted
from gangline_schemas.failure_policy import RestartCause
from gangline_simulator.history import Logged
from gangline_simulator.recorded import REPLAY, Failure, Need, Recording

Due = Literal["start", "save", "end", "stopped", "fail"]
TICKS, MOST_TICK_S = 5000, 60.0
_INSTANT_S = 1e-3
"""Nearer than this are one moment: a time of day is in microseconds, progress is not."""
_AGAIN = frozenset({ReleaseReason.PREEMPTED, ReleaseReason.RESTARTING})


def tick_every_s(recording: Recording) -> float:
    """A tick a second as live; of a long log about `TICKS`, but one in `MOST_TICK_S`."""
    span_s = (recording.end - recording.start).total_seconds()
    return float(min(MOST_TICK_S, max(1, math.ceil(span_s / TICKS))))


@dataclass(slots=True)
class _Course:
    """How far a job has come. `allocated_s`, `stops`, `failures`: of the attempts that ended."""

    need: Need
    saved_s: float = 0.0
    start_s: float = 0.0
    step: int = 0
    allocated_s: float = 0.0
    stops: int = 0
    failures: int = 0
    due: tuple[Failure, ...] = ()


@dataclass(slots=True)
class _Gang:
    """A live attempt. `planned`: the number of what will happen to it next."""

    course: _Course
    event: GangAllocated
    since: datetime
    running_at: datetime | None = None
    stop_at: datetime | None = None
    planned: int = 0

    @property
    def rate(self) -> float:
        """Its progress in a second: an elastic gang may be smaller than the whole."""
        return self.event.world_size / self.course.need.gpus

    def reached_s(self, at: datetime) -> float:
        """Its progress, by that moment."""
        until = at if self.stop_at is None else min(at, self.stop_at)
        if self.running_at is None:
            return self.course.start_s
        worked_s = max(0.0, (until - self.running_at).total_seconds())
        return self.course.start_s + worked_s * self.rate

    def when(self, progress_s: float) -> datetime | None:
        """When it will have come so far, undisturbed."""
        if self.running_at is None or progress_s == math.inf:
            return None
        ahead_s = (progress_s - self.course.start_s) / self.rate
        return self.running_at + timedelta(seconds=max(0.0, ahead_s))

    def next(self) -> tuple[datetime, Due] | None:
        """Its next event, if nothing else happens."""
        course, need = self.course, self.course.need
        end = self.when(need.work_s)
        if self.stop_at is not None:
            stopped = self.stop_at + timedelta(seconds=need.stop_s(course.stops))
            finishes = end is not None and end <= stopped and need.fate == "succeeds"
            return (end, "end") if end is not None and finishes else (stopped, "stopped")
        coming: list[tuple[datetime | None, Due]] = []
        if self.running_at is None:
            start_s = need.start_s(self.event.attempt)
            coming.append((self.since + timedelta(seconds=start_s), "start"))
        done_s = max(course.saved_s, course.start_s) + _INSTANT_S
        save = next((at_s for at_s in need.saves_at if at_s > done_s), math.inf)
        coming.append((self.when(save), "save"))
        coming.append((end, "end"))
        if course.due:
            left_s = course.due[0].allocated_s - course.allocated_s
            coming.append((self.since + timedelta(seconds=left_s), "fail"))
        known = [(at, due) for at, due in coming if at is not None]
        return min(known, key=lambda item: item[0], default=None)


class Rerun:
    """One recording under one scheduler. `run` once."""

    def __init__(
        self,
        recording: Recording,
        scheduler: Scheduler,
        *,
        every_s: float | None = None,
        check: bool = False,
    ) -> None:
        """`check`: assert the scheduler's invariants after each input (slow)."""
        self._recording, self._scheduler, self._check = recording, scheduler, check
        self._every = timedelta(seconds=every_s or tick_every_s(recording))
        self._state = scheduler.initial()
        self._now = recording.start
        self._courses = {
            job_id: _Course(need, due=need.failures) for job_id, need in recording.needs.items()
        }
        self._gangs: dict[str, _Gang] = {}
        self._coming: list[tuple[datetime, int, str, Due]] = []
        self._order = 0
        self._log: list[Logged] = []

    def run(self, progress: Callable[[float], None] | None = None) -> list[Logged]:
        """The log that this scheduler would have written; `progress`: the share that is done."""
        inputs, given = self._recording.inputs, 0
        tick_at = self._recording.start
        whole = self._recording.end - self._recording.start
        while True:
            moments = [item[0] for item in self._coming[:1]]
            if given < len(inputs):
                moments.append(inputs[given].at)
            if self._active:
                moments.append(tick_at)
            if not moments or min(moments) > self._recording.end:
                return self._log
            self._now = max(self._now, min(moments))
            self._happen()
            while given < len(inputs) and inputs[given].at <= self._now:
                self._from_outside(inputs[given].event)
                self._happen()
                given += 1
            if tick_at <= self._now:
                if tick_at == self._now and self._active:
                    self._take(Tick())
                    self._happen()
                passed = (self._now - self._recording.start) // self._every
                tick_at = self._recording.start + (passed + 1) * self._every
                if progress is not None and whole:
                    progress((self._now - self._recording.start) / whole)

    @property
    def _active(self) -> bool:
        return bool(self._state.pending or self._state.live)

    def _happen(self) -> None:
        """All that is due by now."""
        while self._coming and self._coming[0][0] <= self._now:
            _, number, job_id, due = heapq.heappop(self._coming)
            gang = self._gangs.get(job_id)
            if gang is not None and gang.planned == number:
                self._do(job_id, gang, due)

    def _do(self, job_id: str, gang: _Gang, due: Due) -> None:
        if due == "start":
            gang.running_at = self._now
            self._plan(job_id, gang)
            self._start_ranks(gang.event)
        elif due == "save":
            self._save(job_id, gang)
            if self._gangs.get(job_id) is gang:
                self._plan(job_id, gang)
        elif due == "fail":
            failure, *later = gang.course.due
            gang.course.due = tuple(later)
            self._fail(job_id, gang, failure)
        elif due == "stopped":
            if gang.course.need.saves and gang.running_at is not None:
                self._save(job_id, gang)
            self._exit_ranks(gang.event, ExitReason.STOPPED)
        elif gang.course.need.fate == "succeeds":
            self._exit_ranks(gang.event, ExitReason.FINISHED)
        elif gang.course.need.fate == "cancelled":
            self._give(CancelAdmitted(job_id=job_id, user=REPLAY))
        else:
            self._give(_verdict(gang, self._now, FailureCause.USER_ERROR, "fail", ()))

    def _from_outside(self, event: Event) -> None:
        self._give(event)
        if not isinstance(event, NodeJoined | NodeFailed):
            return
        node_id = event.node.node_id if isinstance(event, NodeJoined) else event.node_id
        there = event.node.incarnation if isinstance(event, NodeJoined) else None
        gone = None if isinstance(event, NodeJoined) else event.incarnation
        for job_id, gang in list(self._gangs.items()):
            parts = {part.node_id: part.incarnation for part in gang.event.nodes}
            if node_id in parts and parts[node_id] != there and gone in {None, parts[node_id]}:
                self._lose_node(job_id, gang, node_id)

    def _lose_node(self, job_id: str, gang: _Gang, node_id: str) -> None:
        """A gang ends with its node, and starts again if its spec lets it."""
        restart = gang.course.need.spec.restart
        again = RestartCause.NODE in restart.on and gang.course.failures < restart.max
        action: Literal["restart", "fail"] = "restart" if again else "fail"
        gang.course.failures += 1
        if self._gangs.get(job_id) is gang:
            self._give(_verdict(gang, self._now, FailureCause.NODE, action, (node_id,)))

    def _fail(self, job_id: str, gang: _Gang, failure: Failure) -> None:
        own = {part.node_id for part in gang.event.nodes}
        near = tuple(node_id for node_id in failure.near if node_id in own)
        if failure.near and not near:
            near = (gang.event.nodes[0].node_id,)
        cause = FailureCause.NODE if failure.required else FailureCause.PROCESS
        gang.course.failures += 1
        self._give(_verdict(gang, self._now, cause, "restart", near))
        if self._gangs.get(job_id) is gang:
            self._plan(job_id, gang)

    def _save(self, job_id: str, gang: _Gang) -> None:
        course, reached_s = gang.course, gang.reached_s(self._now)
        if reached_s <= course.saved_s:
            return
        course.saved_s = reached_s
        course.step = max(course.step + 1, round(reached_s))
        point = CheckpointRef(
            job_id=job_id,
            attempt=gang.event.attempt,
            step=course.step,
            world_size=gang.event.world_size,
            commit_key=REPLAY,
        )
        self._give(CheckpointCommitted(job_id=job_id, checkpoint=point, size_bytes=0, objects=1))

    def _give(self, event: Event) -> None:
        self._take(Received(Envelope("", "/replay", self._now, "", event), "", 0, 0))

    def _take(self, item: Input) -> None:
        decisions = self._scheduler.decide(self._state, None, item, self._now)
        for decision in decisions:
            self._state = self._scheduler.evolve(self._state, decision, self._now)
            self._log.append(Logged(self._now, decision.event))
            self._follow(decision.event)
        if self._check and decisions:
            broken = self._scheduler.check(self._state)
            if broken:
                raise AssertionError(f"at {self._now}: {broken[0]}")

    def _follow(self, event: Event) -> None:
        """Apply a decision to its gang."""
        if isinstance(event, GangAllocated):
            gang = _Gang(self._courses[event.job_id], event, self._now)
            self._gangs[event.job_id] = gang
            self._plan(event.job_id, gang)
        elif isinstance(event, GangStopping):
            gang = self._gangs[event.job_id]
            if gang.stop_at is None:
                gang.stop_at = self._now
                self._plan(event.job_id, gang)
        elif isinstance(event, GangReleased):
            self._released(self._gangs.pop(event.job_id), event.reason)

    def _released(self, gang: _Gang, reason: ReleaseReason) -> None:
        course = gang.course
        course.allocated_s += (self._now - gang.since).total_seconds()
        allocated_s = course.allocated_s + _INSTANT_S
        course.due = tuple(item for item in course.due if item.allocated_s > allocated_s)
        course.stops += gang.stop_at is not None and gang.running_at is not None
        if reason not in _AGAIN:
            return
        if course.need.keeps_itself:
            course.start_s = gang.reached_s(self._now)
        elif course.need.spec.checkpoint.resume == "never":
            course.start_s = 0.0
        else:
            course.start_s = course.saved_s

    def _plan(self, job_id: str, gang: _Gang) -> None:
        self._order += 1
        gang.planned = self._order
        coming = gang.next()
        if coming is not None:
            at, due = coming
            heapq.heappush(self._coming, (max(at, self._now), self._order, job_id, due))

    def _start_ranks(self, event: GangAllocated) -> None:
        for rank, node_id, incarnation in _ranks(event):
            self._give(
                WorkerStarted(
                    job_id=event.job_id,
                    attempt=event.attempt,
                    rank=rank,
                    node_id=node_id,
                    incarnation=incarnation,
                    pid=1,
                )
            )

    def _exit_ranks(self, event: GangAllocated, reason: ExitReason) -> None:
        for rank, node_id, incarnation in _ranks(event):
            self._give(
                WorkerExited(
                    job_id=event.job_id,
                    attempt=event.attempt,
                    rank=rank,
                    node_id=node_id,
                    incarnation=incarnation,
                    reason=reason,
                )
            )


def _ranks(event: GangAllocated) -> list[tuple[int, str, str]]:
    return [
        (part.first_rank + place, part.node_id, part.incarnation)
        for part in event.nodes
        for place in range(len(part.gpus))
    ]


def _verdict(
    gang: _Gang,
    now: datetime,
    cause: FailureCause,
    action: Literal["restart", "fail"],
    near: tuple[str, ...],
) -> GangFailed:
    return GangFailed(
        job_id=gang.event.job_id,
        attempt=gang.event.attempt,
        cause=cause,
        action=action,
        message="as recorded" if action == "fail" else "failed as recorded, starts again",
        avoid_nodes=near,
        restarts_used=gang.course.failures,
        restarts_max=max(gang.course.failures, gang.course.need.spec.restart.max),
        failed_at=now,
    )
