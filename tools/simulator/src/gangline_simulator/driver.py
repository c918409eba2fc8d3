"""Replays a trace: the scheduler's own decide and evolve, in virtual time.

One moment of one pool, in this order
1. Work that ends and gangs that were stopped: worker.exited from each of their ranks.
2. Arrivals: job.admitted.
3. Ticks, as the pace says, until one leads to nothing that happens in this same moment.
Ranks start in the moment in which their gang is allocated (worker.started from each).

A preemption costs what `Costs` say: the gang keeps its GPUs for `checkpoint_s` more and makes no
progress, and its next attempt has `restart_s` more to run. Work done before it counts.

Cost: that of the decisions; the driver adds O(log jobs) for each input and O(parts) for each gang.
Nothing here reads a clock or a random source: equal input gives equal output.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, TypeVar

from gangline_bus.codec import Received
from gangline_bus.decision import Decider, Input, Tick
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.quota import JobAdmitted, TeamConfigured
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    GangStopping,
    ReleaseReason,
)
from gangline_schemas.events.workers import ExitReason, NodeJoined, WorkerExited, WorkerStarted
from gangline_schemas.team_limits import TeamConfig
from gangline_simulator.cluster import Pool
from gangline_simulator.ledger import Ledger, PoolResult
from gangline_simulator.pace import Pace
from gangline_simulator.running import Costs, Running
from gangline_simulator.spec import specs_of
from gangline_simulator.trace import TraceJob

START = datetime(2017, 10, 1, tzinfo=UTC)
StateT = TypeVar("StateT")
Kind = Literal["finished", "stopped"]


class StuckError(Exception):
    """The replay cannot end: jobs wait and nothing will ever happen."""


class Replay(Generic[StateT]):
    """One pool's replay. `run` once."""

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[TraceJob],
        decider: Decider[StateT, Any],
        *,
        pace: Pace | None = None,
        costs: Costs | None = None,
        knows_durations: bool = True,
        check: bool = False,
    ) -> None:
        """`check`: assert the decider's invariants after each input (slow)."""
        self._pool, self._jobs, self._decider = pool, jobs, decider
        self._pace, self._costs = pace or Pace(), costs or Costs()
        self._specs = specs_of(jobs, knows_durations=knows_durations)
        self._check = check
        self._state = decider.initial()
        self._now_s = 0.0
        self._now = START
        self._ids = {f"t{index:07d}": job for index, job in enumerate(jobs)}
        self._running: dict[str, Running] = {}
        self._left_s = {job_id: job.duration_s for job_id, job in self._ids.items()}
        self._ends: list[tuple[float, int, str, int, Kind]] = []
        self._order = 0
        self._fresh: deque[GangAllocated] = deque()
        self._changed = False
        self.ledger = Ledger(pool, self._ids)

    def remaining_s(self, job_id: str) -> float:
        """The time that a job has left to run, as the replay knows it."""
        run = self._running.get(job_id)
        return self._left_s[job_id] if run is None else run.left_s(self._now_s)

    def run(self, progress: Callable[[int], None] | None = None) -> PoolResult:
        """Replay all jobs; `progress` gets the number that ended. Raises StuckError."""
        self._configure()
        arrivals = deque(self._ids.items())
        while arrivals or self._running or self.ledger.waiting:
            self._advance(self._next_moment(arrivals))
            while True:
                self._finish_and_stop()
                while arrivals and arrivals[0][1].submit_s <= self._now_s:
                    self._admit(*arrivals.popleft())
                if not self._tick():
                    break
            self.ledger.sample(self._now_s)
            if progress is not None:
                progress(self.ledger.ended)
        return self.ledger.result(self._now_s)

    def _configure(self) -> None:
        # A limit that never binds: what a job waits for is room, not quota.
        limit = self._pool.gpus + max((job.gpus for job in self._jobs), default=0)
        for team in sorted({job.team for job in self._jobs}):
            self._give(TeamConfigured(config=TeamConfig(team=team, gpu_limit=limit)))
        for node in self._pool.nodes:
            self._give(NodeJoined(node=node))

    def _next_moment(self, arrivals: deque[tuple[str, TraceJob]]) -> float:
        while self._ends and not self._is_current(*self._ends[0][2:]):
            heapq.heappop(self._ends)
        moments = [entry[0] for entry in self._ends[:1]]
        if arrivals:
            moments.append(arrivals[0][1].submit_s)
        if self.ledger.waiting:
            due = self._pace.due(self._now_s, self._changed, self._next_change_s, bool(moments))
            if due is not None:
                moments.append(due)
        if not moments:
            jobs = self.ledger.waiting
            raise StuckError(
                f"{jobs} jobs wait and nothing runs any more: a cluster of {self._pool.gpus} GPUs "
                "cannot hold the next one; leave it out of the trace, or give a larger cluster"
            )
        return max(self._now_s, min(moments))

    def _next_change_s(self) -> float | None:
        at = self._pace.next_change(self._state, self._now) if self._pace.next_change else None
        return None if at is None else (at - START).total_seconds()

    def _advance(self, to_s: float) -> None:
        moved = to_s > self._now_s
        self._now_s = to_s
        self._now = START + timedelta(seconds=to_s)
        if moved and self._costs.each_moment_s is not None:
            self._lose_at_each_moment()

    def _lose_at_each_moment(self) -> None:
        """Muri's rule: each moment at which anything happens costs each running job a restart."""
        for job_id, run in self._running.items():
            if run.end_s > self._now_s:
                run.interrupt(self._now_s)
                self._plan_end(job_id, run)

    def _finish_and_stop(self) -> None:
        while self._ends and self._ends[0][0] <= self._now_s:
            _, _, job_id, number, kind = heapq.heappop(self._ends)
            if self._is_current(job_id, number, kind):
                run = self._running[job_id]
                reason = ExitReason.FINISHED if kind == "finished" else ExitReason.STOPPED
                self._changed = True
                for rank, node_id in run.ranks:
                    self._give(
                        WorkerExited(
                            job_id=job_id,
                            attempt=run.attempt,
                            rank=rank,
                            node_id=node_id,
                            incarnation="1",
                            reason=reason,
                        )
                    )

    def _is_current(self, job_id: str, number: int, kind: Kind) -> bool:  # noqa: ARG002
        run = self._running.get(job_id)
        return run is not None and run.planned == number

    def _admit(self, job_id: str, job: TraceJob) -> None:
        self._changed = True
        self.ledger.arrived(job_id)
        spec = self._specs[job_id]
        self._give(JobAdmitted(job_id=job_id, spec=spec, user=job.team, submitted_at=self._now))

    def _tick(self) -> bool:
        """Tick if the pace says so; whether that led to something in this same moment."""
        if not self.ledger.waiting or not self._pace.now(self._now_s, self._changed):
            return False
        self._changed = False
        self._save()
        self._take(Tick())
        return bool(self._ends) and self._ends[0][0] <= self._now_s

    def _save(self) -> None:
        """checkpoint.committed of the gangs whose last one is old: a stop costs them less then."""
        every_s = self._costs.save_every_s
        if every_s is None:
            return
        for job_id, run in list(self._running.items()):
            if not run.stops and self._now_s - max(run.since_s, run.saved_s) >= every_s:
                run.saved_s = self._now_s
                self._give(_checkpoint(job_id, run, step=int(self._now_s)))

    def _give(self, event: Event) -> None:
        self._take(Received(Envelope("", "/simulator", self._now, "", event), "", 0, 0))

    def _take(self, item: Input) -> None:
        decisions = self._decider.decide(self._state, None, item, self._now)
        for decision in decisions:
            self._state = self._decider.evolve(self._state, decision, self._now)
            event = decision.event
            if isinstance(event, GangAllocated):
                self._allocated(event)
            elif isinstance(event, GangStopping):
                self._stop(event)
            elif isinstance(event, GangReleased):
                self._released(event)
        if self._check and decisions:
            broken = self._decider.check(self._state)
            if broken:
                raise AssertionError(f"at {self._now_s} s: {broken[0]}")
        while self._fresh:
            self._start_ranks(self._fresh.popleft())

    def _allocated(self, event: GangAllocated) -> None:
        job = self._ids[event.job_id]
        run = Running(
            job=job,
            attempt=event.attempt,
            ranks=tuple(
                (part.first_rank + place, part.node_id)
                for part in event.nodes
                for place in range(len(part.gpus))
            ),
            since_s=self._now_s,
            work_s=self._left_s[event.job_id],
            costs=self._costs,
        )
        self._running[event.job_id] = run
        self.ledger.allocated(event, self._now_s)
        self._plan_end(event.job_id, run)
        self._fresh.append(event)

    def _start_ranks(self, event: GangAllocated) -> None:
        for part in event.nodes:
            for place in range(len(part.gpus)):
                self._give(
                    WorkerStarted(
                        job_id=event.job_id,
                        attempt=event.attempt,
                        rank=part.first_rank + place,
                        node_id=part.node_id,
                        incarnation="1",
                        pid=1,
                    )
                )

    def _stop(self, event: GangStopping) -> None:
        run = self._running.get(event.job_id)
        if run is not None and run.attempt == event.attempt:
            run.stop(self._now_s)
            self._plan_end(event.job_id, run)

    def _released(self, event: GangReleased) -> None:
        run = self._running.pop(event.job_id)
        self.ledger.released(event, self._now_s, run)
        if event.reason in {ReleaseReason.PREEMPTED, ReleaseReason.RESTARTING}:
            self._left_s[event.job_id] = run.left_s(self._now_s) + run.restart_s
        self._changed = True

    def _plan_end(self, job_id: str, run: Running) -> None:
        self._order += 1
        run.planned = self._order
        kind: Kind = "stopped" if run.stops else "finished"
        heapq.heappush(self._ends, (run.end_s, self._order, job_id, self._order, kind))


def _checkpoint(job_id: str, run: Running, *, step: int) -> CheckpointCommitted:
    point = CheckpointRef(
        job_id=job_id,
        attempt=run.attempt,
        step=step,
        world_size=len(run.ranks),
        commit_key=f"{job_id}/{run.attempt}/{step}",
    )
    return CheckpointCommitted(job_id=job_id, checkpoint=point, size_bytes=0, objects=1)
