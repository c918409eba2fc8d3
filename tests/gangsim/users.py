"""The users: teams, submissions, and requests that are sent again until the bus has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gangline_bus.codec import encode
from gangline_bus.ports import OutRecord
from gangline_quota.service.app import teams_request
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.requests import JobPriorityRequested, JobSubmitted
from gangline_schemas.events.workers import WorkerStacks
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig

if TYPE_CHECKING:
    from gangsim.plan import JobPlan
    from gangsim.world import World

TEAMS = (
    TeamConfig(team="red", gpu_limit=4, gpu_guarantee=2, borrow_limit=2),
    TeamConfig(team="blue", gpu_limit=3, gpu_guarantee=2, borrow_limit=3),
)
NOBODY = "nobody"
URGENT = 5
"""The priority of every third job; most may be stopped for others. SnapshotLog by their steps."""


class Users:
    """Everybody who sends requests."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._bus = world.broker.connect("users/client")
        self.submitted: dict[str, None] = {}
        self.waiting = 0
        self._sent = 0
        self.spoiled: dict[str, int] = {}

    def begin(self) -> None:
        """Configure the teams; submit each job at its time."""
        for team in TEAMS:
            request = teams_request((team,), self._world.engine.utc)
            self.send(team.team, request.data, request.id)
        for job in self._world.plan.jobs:
            self._world.engine.after(job.submit_s, self._submission(job))

    def submit(self, job_id: str, *, again: int = 0) -> None:
        """Submit a job; `again` makes it another request for the same job."""
        job = self._world.jobs[job_id]
        self.submitted[job_id] = None
        event = JobSubmitted(job_id=job_id, spec=spec_of(job), user="u")
        self.send(job_id, event, derived_id("submit", job_id, again))

    def spoil(self, topic: Topic) -> None:
        """A user writes a record that no service can read."""
        if not self._world.broker.down:
            name = self._world.names.name(topic)
            self.spoiled[name] = self.spoiled.get(name, 0) + 1
            writer = self._bus.writer()
            copies = self._world.broker.strikes.copied.get("users", 1)
            self.spoiled[name] += copies - 1
            writer.send(OutRecord(name, b"x", b"{nonsense", (("ce_id", b"1"),)))

    def bother(self, kind: str) -> None:
        """A valid event of this type, if it is a stream's, about a job that no service knows."""
        events: dict[str, Event] = {
            JobPriorityRequested.type: JobPriorityRequested(job_id=NOBODY, priority=1),
            WorkerStacks.type: WorkerStacks(
                job_id=NOBODY, attempt=1, rank=0, node_id=NOBODY, pid=1, state="running"
            ),
        }
        if kind in events and not self._world.broker.down:
            self._sent += 1
            identity = derived_id("bother", self._world.plan.seed, self._sent)
            envelope = Envelope(
                identity, "/sim/users", self._world.engine.utc, NOBODY, events[kind]
            )
            topic = self._world.names.name(topic_of(kind))
            self._bus.writer().send(encode(envelope, topic=topic))

    def send(self, subject: str, event: Event, request_id: str | None = None) -> None:
        """Send a request, as often as it takes."""
        self._sent += 1
        identity = request_id or derived_id("request", self._world.plan.seed, self._sent)
        self.waiting += 1
        self._try(Envelope(identity, "/sim/users", self._world.engine.utc, subject, event))

    def _submission(self, job: JobPlan) -> Callable[[], None]:
        return lambda: self.submit(job.job_id)

    def _try(self, envelope: Envelope) -> None:
        if self._world.broker.down:
            self._world.engine.after(1.0, lambda: self._try(envelope))
            return
        self.waiting -= 1
        self._world.engine.note("request", envelope.subject, envelope.type)
        topic = self._world.names.name(topic_of(envelope.type))
        self._bus.writer().send(encode(envelope, topic=topic))


def spec_of(job: JobPlan) -> JobSpec:
    """The job file of a planned job."""
    optional: dict[str, object] = {}
    if job.max_runtime_s:
        optional["max_runtime_hours"] = job.max_runtime_s / 3600
    if job.resume_from:
        optional["resume_from"] = job.resume_from
    saves = {"incremental": {"full_every": job.full_every}} if job.full_every > 1 else {}
    need: dict[str, float] = {"gpus": job.gpus} | (
        {"min_gpus": job.min_gpus} if job.min_gpus else {}
    )
    if job.steps % 5 == 0:
        need["cpus_per_gpu"] = 2
    if job.gpus_per_worker > 1:
        need["gpus_per_worker"] = job.gpus_per_worker
    if job.cpus:
        need = {"gpus": 0, "cpus": job.cpus, "memory_gb": 1, "nodes": job.gpus}
    return JobSpec.model_validate(
        {
            **optional,
            "name": job.job_id,
            "team": job.team,
            "priority": URGENT if job.steps % 3 == 0 else job.priority,
            "preemptible": job.steps % 4 != 0,
            "command": ["train"],
            "resources": need,
            "topology": {"level": "rack", "mode": "preferred"},
            "checkpoint": {"keep": {"latest": job.keep}, **saves},
            "restart": {"max": job.restarts},
            "stop_grace_seconds": job.grace_s,
        }
    )
