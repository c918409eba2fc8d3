"""The states of studies, pipelines, the registry and alerts do not grow with work that ended.

The bounds are small here, so that months are enough. `bench_year.py` measures the other services.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from gangline_alerts.core import state as alerts_state
from gangline_alerts.core.model import Delivered
from gangline_alerts.core.policy.timing import Timing
from gangline_pipelines.core import evolve as pipelines_evolve
from gangline_registry.core import evolve as registry_evolve
from gangline_registry.core import forgetting as registry_forgetting
from gangline_schemas.events.pipeline_requests import SnapshotAnnounced
from gangline_schemas.job import JobState
from support.builders.alerts import AlertsRun
from support.builders.pipelines import TEAM, PipelineRun, pipeline
from support.builders.registry import RegistryRun, gate
from support.builders.studies import Studies

MONTH_S = 31 * 86_400.0
FIRST, LAST = 15, 30
"""Months; causes of runs of pipelines are remembered for 400 days."""


def entries(state: Any) -> dict[str, int]:
    """The entries of each map and tuple of a state."""
    values = ((each.name, getattr(state, each.name)) for each in fields(state))
    return {name: len(value) for name, value in values if isinstance(value, dict | tuple)}


def after_months(run: Any, month: Any) -> list[dict[str, int]]:
    """The entries after `FIRST` and after `LAST` months of the same work."""
    found = []
    for number in range(1, LAST + 1):
        month(number)
        if number in {FIRST, LAST}:
            found.append(entries(run.state))
    return found


def test_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines_evolve, "REQUESTS_KEPT", 5)
    monkeypatch.setattr("gangline_pipelines.core.evolve_steps.MOST_KEPT", 5)
    run = PipelineRun()

    def month(number: int) -> None:
        run.tick(MONTH_S)
        run.salt = str(number)
        new_text = {"new-text": {"snapshot": "*"}}
        steps: dict[str, Any] = {"a": {"out": ["x"]}, "b": {"in": {"y": "a.x"}}}
        run.apply(pipeline(steps, description=str(number), triggers=new_text))
        run.feed(SnapshotAnnounced(team=TEAM, snapshot=f"text@xxh3-{number:032x}"))
        run.finish()
        run.begin()
        run.finish()

    first, last = after_months(run, month)
    assert last == first
    assert first["runs"] == 2


def test_studies() -> None:
    made = Studies()

    def month(number: int) -> None:
        made.now += timedelta(seconds=MONTH_S)
        study_id = f"study-{number}"
        made.create(study_id)
        for trial in range(3):
            made.run(trial, {10: 2.0, 30: 1.5}, study_id=study_id)
        made.end(study_id)

    first, last = after_months(made, month)
    assert last == first
    assert first["studies"] == 1


def test_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_KEPT", "JUDGED_KEPT", "MOVES_KEPT", "STEPS_BACK"):
        monkeypatch.setattr(registry_evolve, name, 5)
    for name in ("VERSIONS_KEPT", "PROFILES_KEPT"):
        monkeypatch.setattr(registry_forgetting, name, 5)
    run = RegistryRun(gate(training_data={"max_age_days": 30}))

    def month(number: int) -> None:
        run.tick(MONTH_S)
        snapshot = f"sales@xxh3-{number:032x}"
        run.profiled(snapshot)
        run.version(number, snapshot=snapshot, qa=f"scores of {number}")
        run.promote(number, reason="test")
        run.project()

    first, last = after_months(run, month)
    assert last == first
    assert first["versions"] <= 7, "the alias can go back to some"


def test_alerts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOURS_KEPT", "MINUTES_KEPT", "RESOLVED_KEPT", "SENT_KEPT", "AWAY_KEPT"):
        monkeypatch.setattr(alerts_state, name, 5)
    run = AlertsRun(timing=Timing())

    def month(number: int) -> None:
        run.tick(MONTH_S)
        run.settle()
        job_id = f"job-{number}"
        run.node("n1")
        spec = run.queue(job_id, notify=[{"on": ["failed"], "webhook": "ops"}])
        run.allocate(job_id, spec, 8, ("n1",))
        run.save(job_id, 10)
        run.change(job_id, JobState.FAILED)
        run.tick()
        for key in run.effects():
            run.done(key, Delivered(0.1, "HTTP 200"))

    first, last = after_months(run, month)
    assert last == first
    assert (first["jobs"], first["open"], first["sent"]) == (0, 0, 5)
