"""Plays a scenario on the production scheduler; see grammar.py for what it may say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gangline_bus.decision import Decision
from gangline_scheduler.core import jobs
from gangline_scheduler.core.allocate import allocate, demand_from
from gangline_scheduler.core.free import FreeIndex
from gangline_scheduler.core.model import NODE, Job, Member, NodeAllocation
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.placement import Part, Placement, place
from gangline_scheduler.service.config import SchedulerSettings
from gangline_schemas.base import Event
from gangline_schemas.events.faults import FailureCause, NodeFailed, NodeRecovered
from gangline_schemas.events.quota import (
    DrainAdmitted,
    JobAdmitted,
    TeamBudgetChanged,
    TeamConfigured,
)
from gangline_schemas.events.workers import ExitReason, GpuInfo, NodeInfo, NodeJoined
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from scenarios.checked import Checked
from scenarios.expect import misses
from scenarios.grammar import FailRow, JobRow, NodeRow, RunningRow, Scenario, TeamRow
from support.builders.deciding import START, spec

MONTH = "2026-11"


def play(scenario: Scenario) -> None:
    """Take each step and look at what is expected. Raises AssertionError that names the step."""
    table = Table(scenario)
    table.folds_to_the_same()
    all_of_it: list[Event] = []
    for number, step in enumerate(scenario.when, start=1):
        table.now += step.after
        action = step.action()
        decided = table.do(*action) if action is not None else table.tick()
        decided += table.report()
        table.folds_to_the_same()
        all_of_it += decided
        if step.then is not None:
            found = misses(step.then, table, decided)
            assert not found, f"step {number}: {'; '.join(found)}"
    found = misses(scenario.then, table, all_of_it)
    assert not found, "; ".join(found)


class Table(Checked):
    """A cluster as a scenario gives it, and the steps that can be taken."""

    def __init__(self, scenario: Scenario) -> None:
        given = scenario.given
        super().__init__(SchedulerSettings(**given.policy), thorough=False)
        self.silent: set[str] = set()
        for name, team in given.teams.items():
            self.give(TeamConfigured(config=team_config(name, team)))
        for node_id, node in given.nodes.items():
            self.give(NodeJoined(node=node_info(node_id, node)))
        self._begin(given.running)
        self.thorough = True

    def do(self, what: str, value: Any) -> list[Event]:
        """One action of a step."""
        items: Iterable[tuple[str, Any]]
        items = value.items() if isinstance(value, dict) else [(name, None) for name in value]
        take = getattr(self, f"_do_{what}")
        return [event for name, row in items for event in take(name, row)]

    def report(self) -> list[Event]:
        """The ranks of gangs that have started, but of silent jobs."""
        return [
            event
            for job_id in [*self.state.live, *self.state.cpu_live]
            if job_id not in self.silent
            if (gang := self.job(job_id).gang) is not None and Member.UNSEEN in gang.members
            for event in self.start(job_id)
        ]

    def _begin(self, running: dict[str, RunningRow]) -> None:
        """Let running jobs start, and save, as long ago as they did."""
        ages = [row.since for row in running.values()]
        begin = START + max(ages, default=timedelta(0))
        todo: list[tuple[datetime, int, str]] = []
        for job_id, row in running.items():
            todo.append((begin - row.since, 0, job_id))
            if row.saved is not None:
                todo.append((begin - row.saved, 1, job_id))
        for at, saves, job_id in sorted(todo, key=lambda entry: entry[:2]):
            self.now = at
            if saves:
                self.commit(job_id, 100)
            else:
                self._run(job_id, running[job_id])
        self.now = begin

    def _run(self, job_id: str, row: RunningRow) -> None:
        """A gang just where the scenario wants it."""
        shares = row.at if isinstance(row.at, dict) else {row.at: row.gpus}
        plan = Plan(self.state, self.now)
        jobs.admit(plan, self._admitted(job_id, row))
        job = plan.state.jobs[job_id]
        if row.cpus is not None:
            found = Placement(tuple(Part(node_id, ()) for node_id in shares), NODE)
        else:
            found = self._placed(job, shares)
        allocate(plan, job, found)
        self._write(plan.decisions)
        if not row.silent:
            self.start(job_id)

    def _placed(self, job: Job, shares: dict[str, int]) -> Placement:
        job_id, own = job.job_id, []
        for node_id, count in shares.items():
            free = self.state.free.get(node_id)
            assert free is not None, f"{job_id}: {node_id} takes no gangs"
            assert free.size >= count, f"{job_id}: {free.size} are free on {node_id}"
            own.append(free.less(NodeAllocation(free.indexes("")[count:], 0.0, 0.0)))
        demand = replace(demand_from(job.spec, self.state), gpus=sum(shares.values()), fewest=None)
        found = place(demand, FreeIndex(own), self.state.levels)
        assert found is not None, f"{job_id}: its ranks don't fit where it shall run"
        return found

    def _write(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.state = self.decider.evolve(self.state, decision, self.now)
            self.log.append((decision, self.now))

    def _admitted(self, job_id: str, row: JobRow) -> JobAdmitted:
        if row.silent:
            self.silent.add(job_id)
        return JobAdmitted(job_id=job_id, spec=job_spec(row), user="ada", submitted_at=self.now)

    def _do_submit(self, job_id: str, row: JobRow) -> list[Event]:
        return self.give(self._admitted(job_id, row))

    def _do_finish(self, job_id: str, _: None) -> list[Event]:
        return self.exit(job_id)

    def _do_gone(self, job_id: str, _: None) -> list[Event]:
        return self.exit(job_id, ExitReason.STOPPED)

    def _do_save(self, job_id: str, step: int) -> list[Event]:
        return self.commit(job_id, step, self.job(job_id).attempt)

    def _do_restore(self, job_id: str, step: int) -> list[Event]:
        return self.restore(job_id, step)

    def _do_cancel(self, job_id: str, _: None) -> list[Event]:
        return self.cancel(job_id)

    def _do_fail(self, job_id: str, row: FailRow) -> list[Event]:
        cause = FailureCause(row.cause)
        return self.fail(job_id, action=row.action, cause=cause, avoid=tuple(row.nodes))

    def _do_prioritize(self, job_id: str, priority: int) -> list[Event]:
        return self.prioritize(job_id, priority)

    def _do_join(self, node_id: str, row: NodeRow) -> list[Event]:
        return self.give(NodeJoined(node=node_info(node_id, row)))

    def _do_node_fails(self, node_id: str, _: None) -> list[Event]:
        incarnation = self.state.nodes[node_id].info.incarnation
        return self.give(NodeFailed(node_id=node_id, incarnation=incarnation, reason="silent"))

    def _do_node_recovers(self, node_id: str, _: None) -> list[Event]:
        incarnation = self.state.nodes[node_id].info.incarnation
        return self.give(NodeRecovered(node_id=node_id, incarnation=incarnation, was="failed"))

    def _do_leave(self, node_id: str, _: None) -> list[Event]:
        return self.leave(node_id, self.state.nodes[node_id].info.incarnation)

    def _do_drain(self, node_id: str, _: None) -> list[Event]:
        return self.give(DrainAdmitted(node_id=node_id, drain=True, user="ada"))

    def _do_cordon(self, node_id: str, _: None) -> list[Event]:
        return self.give(DrainAdmitted(node_id=node_id, drain=True, move_jobs=False, user="ada"))

    def _do_undrain(self, node_id: str, _: None) -> list[Event]:
        return self.give(DrainAdmitted(node_id=node_id, drain=False, user="ada"))

    def _do_team(self, name: str, row: TeamRow) -> list[Event]:
        return self.give(TeamConfigured(config=team_config(name, row)))

    def _do_spent(self, name: str, spent: bool) -> list[Event]:
        return self.give(
            TeamBudgetChanged(team=name, month=MONTH, exhausted=spent, spent_gpu_hours=100)
        )


def team_config(name: str, row: TeamRow) -> TeamConfig:
    """As quota writes it."""
    return TeamConfig(
        team=name,
        gpu_limit=row.limit,
        cpu_limit=row.cpu_limit,
        gpu_guarantee=row.guarantee,
        borrow_limit=row.borrow,
        parent=row.parent,
        weight=row.weight,
        surplus=row.surplus,
        gpu_types=row.models,  # type: ignore[arg-type] # as people write them in a file
    )


def node_info(node_id: str, row: NodeRow) -> NodeInfo:
    """As its agent says it."""
    models = row.model if isinstance(row.model, dict) else {row.model: row.gpus}
    each = [model for model, count in models.items() for _ in range(count)]
    return NodeInfo(
        node_id=node_id,
        incarnation=row.incarnation,
        address="127.0.0.1",
        hostname=node_id,
        rack=row.rack,
        block=row.block,
        labels=row.labels,
        gpus=tuple(GpuInfo(index=i, model=model, memory_gb=80) for i, model in enumerate(each)),
        cpu_only=not each,
        cpus=row.cpus,
        memory_gb=row.memory_gb,
        rendezvous_ports=tuple(range(7001, 7033)),
        isolation=row.isolation,
    )


def job_spec(row: JobRow) -> JobSpec:
    """As its user wrote it."""
    fields: dict[str, Any] = {}
    if row.within or row.near:
        mode = "required" if row.within else "preferred"
        fields["topology"] = {"level": row.within or row.near, "mode": mode}
    if row.expected is not None:
        fields["expected_runtime_hours"] = row.expected.total_seconds() / 3600
    if row.limit is not None:
        fields["max_runtime_hours"] = row.limit.total_seconds() / 3600
    need: dict[str, Any] = {
        "gpu_type": row.models,
        "cpus_per_gpu": row.cpus_per_gpu,
        "memory_per_gpu_gb": row.memory_per_gpu_gb,
    }
    if row.gpus_per_worker is not None:
        need["gpus_per_worker"] = row.gpus_per_worker
    if row.tensor is not None:
        fields["parallel"] = {"shard": "auto", "tensor": row.tensor}
    if row.min_gpus is not None:
        need["min_gpus"] = row.min_gpus
        need["gpu_counts"] = row.gpu_counts
    if row.cpus is not None:
        need = {"gpus": 0, "cpus": row.cpus, "memory_gb": row.memory_gb, "nodes": row.nodes}
    return spec(
        row.team,
        row.gpus,
        resources=need,
        priority=row.priority,
        preemptible=row.preemptible,
        node_labels=row.labels,
        stop_grace_seconds=row.grace.total_seconds(),
        checkpoint={"interval_minutes": row.saves_every.total_seconds() / 60},
        **fields,
    )
