"""What the alerts service has of the year: 5,000 runs a day, on 1,250 nodes.

One run of 20 fails and sends a notification; one of 50 has an alert that is raised and resolved.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from year_automation import Automated
from year_work import (
    GPUS,
    NODES,
    PENDING,
    SAVES_A_ROUND,
    START,
    Run,
    allocated,
    committed,
    live_gangs,
    node_info,
    node_name,
    ref,
    spec_of,
)

from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.model import Delivered
from gangline_alerts.core.policy.routes import Receivers, Route
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.snapshot import codec
from gangline_schemas.alerts import AlertRule, AlertText, Severity
from gangline_schemas.base import Event
from gangline_schemas.events.alerts import AlertRaised, AlertResolved
from gangline_schemas.events.heartbeats import GpuStatus, WorkerHeartbeat
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.scheduling import (
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
    NodeCordoned,
    ReleaseReason,
)
from gangline_schemas.job import JobState, Notification
from support.builders.gangs import gang_released

REMEMBERED = 25_000
"""Runs: of what the service remembers of ended ones, the newest thousand alerts take longest."""


class AlertYear(Automated):
    """Jobs and nodes are followed, measurements are soft; notifications arrive."""

    def begin(self) -> None:
        for at in range(NODES):
            self.give("node", NodeAdmitted(node=node_info(node_name(at), at)))

    def end_run(self, run: Run) -> None:
        failed = run.number % 20 == 0
        notify = (Notification(on=(JobState.FAILED,), webhook="ops"),) if failed else ()
        spec = run.spec.model_copy(update={"notify": notify})
        self._start(run.job_id, spec, [node_name(run.number % NODES)])
        self.give("commit", committed(ref(run.job_id, spec, 100, run.gpus)))
        self._end(run.job_id, JobState.FAILED if failed else JobState.SUCCEEDED)
        if run.number % 50 == 0:
            self._alert(run)

    def lose_node(self, node_id: str) -> None:
        self.give("node", NodeAdmitted(node=node_info(node_id)))
        self.give("node", NodeCordoned(node_id=node_id, incarnation="i", reason="failed"))
        self.tick()

    def begin_work(self) -> None:
        for job, spec, nodes in live_gangs():
            self._start(job, spec, nodes)
        for number in range(PENDING):
            queued = JobQueued(
                job_id=f"waits-{number}", spec=spec_of(number), user="ann", submitted_at=self.now
            )
            self.give("queued", queued)

    def round(self, *, watched: bool = False) -> None:
        self.now += self.between_runs
        step = (self.now - START) // timedelta(seconds=1)
        live = [name for name, job in self.state.jobs.items() if job.places]
        for job in random.Random(step).sample(live, SAVES_A_ROUND):
            self.give("commit", committed(ref(job, spec_of(step), step, GPUS)))
        places = self.state.jobs[live[0]].places
        self._end(live[0], JobState.SUCCEEDED)
        fresh = f"new-{(self.now - START) // timedelta(milliseconds=1):014d}"
        self._start(fresh, spec_of(step), [place.node_id for place in places])
        if watched:
            self._measure(step)
        self.tick()

    def watched_round(self) -> None:
        self.round(watched=True)

    def _start(self, job: str, spec: Any, nodes: Sequence[str]) -> None:
        queued = JobQueued(job_id=job, spec=spec, user="ann", submitted_at=self.now)
        self.give("queued", queued)
        self.give("allocated", allocated(job, spec, nodes))

    def _end(self, job: str, state: JobState) -> None:
        released = gang_released(job, 1, self.now, ReleaseReason.SUCCEEDED, 1.0)
        self.give("released", released)
        changed = JobStateChanged(job_id=job, attempt=1, previous=JobState.RUNNING, state=state)
        self.give("ended", changed)

    def _alert(self, run: Run) -> None:
        """A measured condition held for a while."""
        text = AlertText(
            number=self.state.numbers.get("alert", 0) + 1, rule=AlertRule.DATA_LOADING,
            subject=run.job_id, team=run.spec.team, severity=Severity.WARNING, value=0.5,
            threshold=0.2, message="It waits for data.", raised_at=self.now,
        )  # fmt: skip
        self.fold(AlertRaised(**vars(text), targets=("ops",)))
        resolved = AlertResolved(
            number=text.number, rule=text.rule, subject=text.subject, team=text.team,
            reason="recovered", resolved_at=self.now,
        )  # fmt: skip
        self.fold(resolved)

    def _measure(self, step: int) -> None:
        """A heartbeat of each node and the progress of each run."""
        for at in range(NODES):
            gpus = tuple(GpuStatus(index=gpu, utilization=90.0) for gpu in range(GPUS))
            self._seen(
                WorkerHeartbeat(
                    node_id=node_name(at), incarnation="i", sequence=step, sent_at=self.now,
                    gpus=gpus, cpu_percent=10.0,
                )
            )  # fmt: skip
        for job, held in self.state.jobs.items():
            if held.places:
                self._seen(
                    RunProgress(
                        run_id=job, team=held.team, attempt=1, rank=0, step=step, time_ms=1,
                        metrics={}, step_s=1.0, data_wait_share=0.01,
                    )
                )  # fmt: skip

    def _seen(self, event: Event) -> None:
        self.observe(self.received(event))

    def give(self, kind: str, event: Event) -> list[Event]:
        received = self.received(event)
        events = self.cycle(kind, received)
        self.observe(received)
        return events

    def answer(self, effect: object) -> object:
        return Delivered(0.1, "HTTP 200")


def alert_year() -> AlertYear:
    """With all rules and one receiver."""
    receivers = Receivers((Route(to="ops"),), {"ops": frozenset()})
    return AlertYear(AlertDecider(Rules(), receivers, Timing()), codec(), newest=REMEMBERED)
