"""Jobs without GPUs in quota: admitted by CPUs, billed in CPU time, with a budget of their own."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gangline_quota.core import invariants
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec, fingerprint
from gangline_quota.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.quota import (
    GangMetered,
    JobAdmitted,
    JobRejected,
    TeamBudgetChanged,
    TeamCpuBudgetChanged,
    UsageCharged,
)
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import (
    ReleaseReason,
)
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from support.builders.deciding import Drive, every, only, spec
from support.builders.gangs import gang_allocated, gang_released, spread


def cpu_spec(cpus: float, nodes: int = 1, team: str = "nlp", **fields: object) -> JobSpec:
    resources = {"gpus": 0, "cpus": cpus, "memory_gb": 1, "nodes": nodes}
    return spec(team, 1, resources=resources, **fields)


class Ledger(Drive[State]):
    """Quota with a lab, and the team nlp in it."""

    def __init__(self, **limits: object) -> None:
        super().__init__(Quota())
        lab = {"team": "lab", "gpu_limit": 8, **limits}
        for config in (lab, {"team": "nlp", "gpu_limit": 0, "parent": "lab"}):
            self.give(TeamConfigureRequested(config=TeamConfig.model_validate(config), user="ops"))

    def submit(self, job_id: str, wanted: JobSpec) -> list[Event]:
        return self.give(JobSubmitted(job_id=job_id, spec=wanted, user="ada"))

    def allocate(self, job_id: str, wanted: JobSpec) -> list[Event]:
        node_ids = [f"n{rank}" for rank in range(wanted.resources.ranks)]
        return self.give(gang_allocated(job_id, wanted, *spread(node_ids, 0)))

    def release(self, job_id: str) -> list[Event]:
        return self.give(gang_released(job_id, 1, self.now, ReleaseReason.SUCCEEDED))


def test_cpus_times_seconds_are_charged_exactly_and_no_gpus() -> None:
    ledger, wanted = Ledger(), cpu_spec(0.3, nodes=3)
    assert only(ledger.submit("a", wanted), JobAdmitted).note is None
    metered = only(ledger.allocate("a", wanted), GangMetered)
    assert (metered.gpus, metered.cpus) == (0, 0.9)
    ledger.now += timedelta(hours=1)
    charged = only(ledger.release("a"), UsageCharged)
    assert (charged.gpus, charged.gpu_seconds) == (0, 0)
    assert (charged.cpus, charged.cpu_seconds) == (0.9, 3240)
    assert ledger.state.spent_cpu_us == {("nlp", "2026-11"): 900 * 3_600_000_000}
    assert (ledger.state.allocated, ledger.state.cpus) == ({}, {})
    assert invariants.ledger_broken(ledger.state) == []
    assert fingerprint(ledger.replayed()) == fingerprint(ledger.state)


def test_gpu_limits_say_nothing_of_it_and_cpu_limits_of_each_level_do() -> None:
    ledger = Ledger(cpu_limit=8, gpu_types=["h100"], gpu_hours_per_month=1)
    fits = cpu_spec(8, max_runtime_hours=100)
    assert only(ledger.submit("a", fits), JobAdmitted).note is None
    ledger.allocate("a", fits)
    note = only(ledger.submit("b", cpu_spec(4)), JobAdmitted).note
    assert note is not None
    assert "lab has 8 of its 8 CPUs" in note
    refused = only(ledger.submit("c", cpu_spec(4.5, nodes=2)), JobRejected)
    assert refused.reason == "would exceed quota: 9/8 CPUs of team lab"


@pytest.mark.parametrize(
    ("hours", "reason"),
    [(4, None), (6, "would exceed quota: 12/10 CPU-hours a month of team lab (2 CPUs for ")],
)
def test_a_month_that_cannot_pay_for_it_refuses_it(hours: float, reason: str | None) -> None:
    events = Ledger(cpu_hours_per_month=10).submit("a", cpu_spec(2, max_runtime_hours=hours))
    refused = every(events, JobRejected)
    assert [event.reason.startswith(reason or "-") for event in refused] == [True] * bool(reason)


@pytest.mark.parametrize(
    "wanted",
    [
        cpu_spec(3, team="lab", max_runtime_hours=1.1),
        cpu_spec(0.3, team="lab", expected_runtime_hours=11),
        spec("lab", 3, max_runtime_hours=1.1),
        spec("lab", 1, max_runtime_hours=3.3),
    ],
)
def test_a_job_that_costs_exactly_the_budget_of_a_month_fits(wanted: JobSpec) -> None:
    ledger = Ledger(gpu_hours_per_month=3.3, cpu_hours_per_month=3.3)
    only(ledger.submit("a", wanted), JobAdmitted)


def test_a_live_one_spends_the_budget_and_the_next_month_opens_it_each_once() -> None:
    ledger, wanted = Ledger(cpu_hours_per_month=2), cpu_spec(2)
    ledger.submit("a", wanted)
    ledger.allocate("a", wanted)
    assert ledger.tick(3000) == []
    spent = only(ledger.tick(600), TeamCpuBudgetChanged)
    assert (spent.team, spent.exhausted, spent.spent_cpu_hours) == ("lab", True, 2)
    assert ledger.tick(1) == []
    note = only(ledger.submit("b", wanted), JobAdmitted).note
    assert note is not None
    assert "lab has spent 2 of its 2 CPU-hours of 2026-11" in note
    assert only(ledger.submit("gang", spec("lab", 1)), JobAdmitted).note is None
    ledger.release("a")
    events = ledger.tick(15 * 24 * 3600)
    assert not only(events, TeamCpuBudgetChanged).exhausted
    assert every(events, TeamBudgetChanged) == []


def test_a_snapshot_of_a_state_without_them_is_read() -> None:
    ledger, kept = Ledger(), codec()
    ledger.submit("gang", spec("lab", 1))
    lines = [*kept.dump(kept.copy(ledger.state))]
    assert fingerprint(kept.load(lines, version=1)) == fingerprint(ledger.state)
