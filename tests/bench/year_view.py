"""The gateway's part of the year's work: its view of all logs, as if it were a decider."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from year_work import (
    GPUS,
    MIX,
    NODES,
    PENDING,
    SAVES_A_ROUND,
    START,
    Run,
    Service,
    allocated,
    committed,
    ended,
    fresh_id,
    live_gangs,
    node_info,
    node_name,
    ref,
    spec_of,
    teams,
)

from gangline_bus.codec import Received
from gangline_bus.decision import Decision, Input, Observed
from gangline_gateway.checkpoint_rows import ROWS_KEPT
from gangline_gateway.followed import Copies
from gangline_gateway.live import Live
from gangline_gateway.live_view import LiveView
from gangline_gateway.view_snapshot import View
from gangline_gateway.view_snapshot import codec as view_codec
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.checkpoints import CheckpointDeleted, CheckpointSaved
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.events.scheduling import (
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
)
from gangline_schemas.job import JobState

LATEST = Retention().latest


@dataclass(slots=True)
class Viewed:
    """The gateway's view as a decider: what comes in is what is folded; a check is a new view."""

    name: str = "gateway"
    log: Topic = Topic.SCHEDULING

    def initial(self) -> Live:
        return Live()

    def initial_soft(self) -> None:
        return None

    def observe(self, state: Live, soft: None, item: Observed, now: datetime) -> None:
        return None

    def decide(self, state: Live, soft: None, item: Input, now: datetime) -> list[Decision]:
        assert isinstance(item, Received)
        return [Decision(item.envelope.subject, item.envelope.data)]

    def evolve(self, state: Live, decision: Decision, at: datetime) -> Live:
        state.apply(Envelope("e", "/bench", at, decision.subject, decision.event))
        return state

    def check(self, state: Live) -> list[str]:
        LiveView(state, Copies([]), Copies([]))
        return []


class ViewCodec:
    """The codec of the gateway's view, for its live model."""

    def __init__(self) -> None:
        self._codec = view_codec()
        self.version, self.form = self._codec.version, self._codec.form
        self.reads, self.dump = self._codec.reads, self._codec.dump

    def copy(self, live: Live) -> Any:
        return vars(View(**vars(live.facts())))

    def load(self, lines: Any, version: int | None = None) -> Live:
        return Live.of(self._codec.load(lines, version))


class GatewayYear(Service):
    """What lists and pages show: events of all logs."""

    def begin(self) -> None:
        self.fold(*(TeamConfigured(config=config) for config in teams()))
        self.fold(*(NodeAdmitted(node=node_info(node_name(at), at)) for at in range(NODES)))

    def end_run(self, run: Run) -> None:
        job_id = run.job_id
        saves = min(run.saves, ROWS_KEPT) if self.whole else 3
        points = list(run.checkpoints(saves))
        self.fold(JobQueued(job_id=job_id, spec=run.spec, user="ann", submitted_at=self.now))
        for at, point in enumerate(points):
            self.fold(committed(point))
            if at >= LATEST:
                old = points[at - LATEST]
                self.fold(
                    CheckpointDeleted(
                        job_id=job_id,
                        attempt=old.attempt,
                        step=old.step,
                        reason="newer checkpoints replace it",
                    )
                )
        self.fold(ended(job_id, 1, self.now)[1])

    def lose_node(self, node_id: str) -> None:
        left = NodeCordoned(node_id=node_id, incarnation="i", reason="leaving")
        self.fold(NodeAdmitted(node=node_info(node_id)), left)

    def go_live(self) -> None:
        for job_id, spec, nodes in live_gangs():
            self.fold(*self._begun(job_id, spec, nodes))
            half = int(MIX[int(job_id[5:]) % len(MIX)][1] * 3)
            self.fold(*(committed(ref(job_id, spec, at, GPUS)) for at in range(half)))
        for number in range(PENDING):
            queued = JobQueued(
                job_id=f"waits-{number}", spec=spec_of(number), user="ann", submitted_at=self.now
            )
            self.fold(queued)

    def _begun(self, job_id: str, spec: Any, nodes: list[str]) -> list[Event]:
        return [
            JobQueued(job_id=job_id, spec=spec, user="ann", submitted_at=self.now),
            allocated(job_id, spec, nodes),
            JobStateChanged(
                job_id=job_id, attempt=1, previous=JobState.PENDING, state=JobState.RUNNING
            ),
        ]

    def round(self) -> None:
        self.now += self.between_runs
        step = (self.now - START) // timedelta(seconds=1)
        live = [job for job in self.state.jobs.values() if job.state == JobState.RUNNING.value]
        for job in random.Random(step).sample(live, SAVES_A_ROUND):
            common = {"job_id": job.job_id, "attempt": 1, "step": step}
            self.give("saved", CheckpointSaved(**common, world_size=GPUS))
            self.give("commit", committed(ref(job.job_id, spec_of(step), step, GPUS)))
            self.give("deleted", CheckpointDeleted(**common, reason="newer checkpoints replace it"))
        for event in ended(live[0].job_id, 1, self.now):
            self.give("ended", event)
        nodes = [node_name(step % NODES)]
        for event in self._begun(fresh_id(self), spec_of(step), nodes):
            self.give("begun", event)
