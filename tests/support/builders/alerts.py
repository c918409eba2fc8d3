"""The alerts service driven by hand, and what the other services say to it."""

from __future__ import annotations

from datetime import timedelta

from gangline_alerts.core.decide import AlertDecider
from gangline_alerts.core.model import Watch
from gangline_alerts.core.policy.routes import Receivers, Route
from gangline_alerts.core.policy.rules import Rules
from gangline_alerts.core.policy.timing import Timing
from gangline_alerts.core.snapshot import fingerprint
from gangline_alerts.core.state import AlertState
from gangline_schemas.alerts import AlertRule
from gangline_schemas.events.alerts import AlertRaised, AlertResolved, NotificationDue
from gangline_schemas.events.checkpoints import CheckpointAbandoned, CheckpointCommitted
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.heartbeats import GpuStatus, GpuUse, NodeUse, WorkerHeartbeat
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    JobQueued,
    JobStateChanged,
    NodeAdmitted,
    ReleaseReason,
)
from gangline_schemas.job import JobSpec, JobState
from support.builders.gangs import gang_allocated, gang_released, node_info, spread
from support.harnesses.decider_run import DeciderRun

SETTLED_S = 20.0
Run = DeciderRun[AlertState, Watch]


class AlertsRun(Run):
    """The decider, and short words for its inputs."""

    def __init__(
        self,
        rules: Rules | None = None,
        receivers: Receivers | None = None,
        timing: Timing | None = None,
    ) -> None:
        given = receivers or Receivers((Route(to="ops"),), {"ops": frozenset()})
        super().__init__(AlertDecider(rules or Rules(), given, timing or Timing()), fingerprint)

    def settle(self) -> None:
        """The first Tick, and the time until rules are judged."""
        self.tick()
        self.tick(SETTLED_S)

    def raised(self, rule: AlertRule) -> list[AlertRaised]:
        """Alerts of a rule that were raised so far."""
        return [one for one in self.events(AlertRaised) if one.rule is rule]  # type: ignore[attr-defined]

    def resolved(self, rule: AlertRule) -> list[AlertResolved]:
        """Alerts of a rule that were resolved so far."""
        return [one for one in self.events(AlertResolved) if one.rule is rule]  # type: ignore[attr-defined]

    def due(self) -> list[NotificationDue]:
        """Notifications so far."""
        return list(self.events(NotificationDue))  # type: ignore[arg-type]

    def pass_time(self, seconds: float, step_s: float = 10.0) -> None:
        """Ticks, every `step_s`."""
        while seconds > 0:
            self.tick(min(step_s, seconds))
            seconds -= step_s

    def node(self, node_id: str, gpus: int = 8) -> None:
        """A node is admitted."""
        self.feed(NodeAdmitted(node=node_info(node_id, gpus, incarnation="i1")))

    def queue(self, job_id: str, gpus: int = 8, **fields: object) -> JobSpec:
        """A job waits."""
        given = {"name": job_id, "team": "nlp", "run": "true", "resources": {"gpus": gpus}}
        spec = JobSpec.model_validate({**given, **fields})
        self.feed(JobQueued(job_id=job_id, spec=spec, user="ada", submitted_at=self.now))
        return spec

    def start(
        self, job_id: str, gpus: int = 8, nodes: tuple[str, ...] = ("n1",), **fields: object
    ) -> None:
        """A job waits and has its gang at once, spread evenly over the nodes."""
        self.allocate(job_id, self.queue(job_id, gpus, **fields), gpus, nodes)

    def allocate(
        self, job_id: str, spec: JobSpec, gpus: int, nodes: tuple[str, ...], attempt: int = 1
    ) -> None:
        """An attempt has its gang, spread evenly over the nodes."""
        parts = spread(nodes, gpus // len(nodes), incarnation="i1")
        self.feed(gang_allocated(job_id, spec, *parts, attempt=attempt))

    def release(self, job_id: str, attempt: int = 1) -> None:
        """The gang's GPUs are free."""
        since = self.now - timedelta(seconds=1)
        self.feed(gang_released(job_id, attempt, since, ReleaseReason.PREEMPTED, 1))

    def change(self, job_id: str, state: JobState, reason: str = "") -> None:
        """The job is in this state."""
        changed = JobStateChanged(
            job_id=job_id, attempt=1, previous=JobState.RUNNING, state=state, reason=reason
        )
        self.feed(changed)

    def end(self, job_id: str, state: JobState = JobState.SUCCEEDED) -> None:
        """A job is queued and ends."""
        self.queue(job_id, 1)
        self.change(job_id, state)

    def save(self, job_id: str, step: int, *, committed: bool = True, attempt: int = 1) -> None:
        """A save is committed, or never will be."""
        if not committed:
            lost = CheckpointAbandoned(job_id=job_id, attempt=attempt, step=step, reason="lost")
            self.feed(lost)
            return
        checkpoint = CheckpointRef(
            job_id=job_id, attempt=attempt, step=step, world_size=8, commit_key="k"
        )
        self.feed(
            CheckpointCommitted(job_id=job_id, checkpoint=checkpoint, size_bytes=1, objects=1)
        )

    def fail_node(self, node_id: str, reason: str = "silent") -> None:
        """The fault manager says that a node failed."""
        self.feed(NodeFailed.model_validate(
            {"node_id": node_id, "incarnation": "i1", "reason": reason}
        ))  # fmt: skip

    def progress(self, job_id: str, data_wait: float | None = None, **metrics: float) -> None:
        """The live view says how far a run is; a step takes a second."""
        self.signal(RunProgress(
            run_id=job_id, team="nlp", attempt=1, rank=0, step=1, time_ms=1, metrics=metrics,
            step_s=1.0, data_wait_share=data_wait,
        ))  # fmt: skip

    def beat(
        self,
        node_id: str,
        busy_percent: float,
        cpu_percent: float = 10.0,
        *,
        sm_percent: float | None = None,
    ) -> None:
        """A heartbeat of a node with eight GPUs; with `sm_percent` it has a reading of its use."""
        use = None
        if sm_percent is not None:
            gpus = tuple(GpuUse(index=i, sm_percent=sm_percent) for i in range(8))
            use = NodeUse(read_at=self.now, gpus=gpus)
        self.signal(WorkerHeartbeat(
            node_id=node_id, incarnation="i1", sequence=1, sent_at=self.now,
            gpus=tuple(GpuStatus(index=i, utilization=busy_percent) for i in range(8)),
            cpu_percent=cpu_percent, use=use,
        ))  # fmt: skip
