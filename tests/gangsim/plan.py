"""What one run is made of: nodes, jobs and an explicit list of faults. A plan is a JSON value."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, or that a user does, at a time in virtual seconds.

    `target` is a service, a node or a job; `amount` and `detail` are the kind's own (faults.py).
    """

    at_s: float
    kind: str
    target: str
    duration_s: float = 0.0
    amount: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A machine with so many GPUs; 0: it takes jobs without GPUs alone."""

    node_id: str
    gpus: int
    rack: str


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A training job: `steps` of `step_s` seconds each, a checkpoint every `save_every` steps.

    `min_gpus` makes it elastic; 0: it is not. `full_every` above 1 makes its saves incremental.
    `cpus` above 0: it has no GPUs, and so many CPUs on each of `gpus` nodes.
    """

    job_id: str
    team: str
    gpus: int
    steps: int
    step_s: float
    save_every: int
    submit_s: float
    priority: int = 50
    grace_s: float = 20.0
    restarts: int = 3
    keep: int = 2
    max_runtime_s: float = 0.0
    resume_from: str = ""
    min_gpus: int = 0
    gpus_per_worker: int = 1
    full_every: int = 1
    cpus: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that a run depends on. `seed` feeds the streams of latencies and the like."""

    seed: int
    nodes: tuple[NodePlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[Fault, ...]
    chaos_s: float

    def to_json(self, **more: object) -> str:
        """Readable JSON; `more` stands beside the plan."""
        return json.dumps({**more, "plan": asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Plan:
        """The plan of `to_json`."""
        return cls(
            seed=data["seed"],
            nodes=tuple(NodePlan(**item) for item in data["nodes"]),
            jobs=tuple(JobPlan(**item) for item in data["jobs"]),
            faults=tuple(Fault(**item) for item in data["faults"]),
            chaos_s=data["chaos_s"],
        )

    def incremental(self, full_every: int) -> Plan:
        """The same run with saves that leave out what did not change."""
        jobs = tuple(replace(job, full_every=full_every) for job in self.jobs)
        return replace(self, jobs=jobs)

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        """The same run with other faults."""
        return replace(self, faults=faults)

    def without_jobs(self, gone: frozenset[str]) -> Plan:
        """The same run without some jobs and what is done to them."""
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.job_id not in gone),
            faults=tuple(fault for fault in self.faults if fault.target not in gone),
        )
