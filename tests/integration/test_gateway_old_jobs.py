"""Jobs that ended so long ago that only history has them, over real HTTP; and jobs of trials."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from gangline_bus.codec import decode
from gangline_gateway.followed import Copies
from gangline_gateway.history import HistoryRun
from gangline_gateway.history_access import HistoryAccess, Queries
from gangline_gateway.scheduling import starts_of_ended
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.ended_runs import EndedRun
from gangline_schemas.api.checkpoints import Checkpoint
from gangline_schemas.api.runs import Final, Run
from gangline_schemas.catalog import Topic
from gangline_schemas.events.checkpoints import CheckpointCommitted
from gangline_schemas.events.quota import JobClosed, PinAdmitted
from gangline_schemas.events.scheduling import CheckpointRef
from gangline_schemas.job import JobSpec, TrialRef
from support.builders.gateway import GatewayHarness, NoHistory, job, served
from support.fixtures.gateway_http import NLP, VISION, problem

NOW = datetime(2026, 11, 24, tzinfo=UTC)


def saved(step: int, status: str = "committed") -> Checkpoint:
    return Checkpoint(
        attempt=1, step=step, status=status, committed_at=NOW + timedelta(seconds=step),
        world_size=1, size_bytes=9, write_s=0.1, blocked_s=0.0,
    )  # fmt: skip


class OldRuns(NoHistory):
    """ClickHouse that knows one run of team nlp, with three checkpoints and two metrics."""

    def __init__(self) -> None:
        self.row: HistoryRun | None = None

    def run(self, _job_id: object, teams: frozenset[str] | None) -> Any:
        seen = self.row is not None and (teams is None or self.row.run.team in teams)
        return self.row if seen else None

    def checkpoints(self, *_: object) -> list[Any]:
        return [saved(30, "corrupted"), saved(20), saved(10)]

    def latest(self, runs: Any) -> dict[str, Any]:
        [run] = runs
        return {
            "loss": {run: Final(step=31, value=0.5, low=0.25, high=2.0)},
            "mfu": {run: Final(step=30, value=0.4, low=0.1, high=0.4)},
        }


def old_run(job_id: str, spec: JobSpec) -> HistoryRun:
    run = Run(
        run_id=job_id, team=spec.team, project="", name=spec.name, user="ada", state="cancelled",
        reason="", attempt=1, restarts=0, gpus=1, priority=50, submitted_at=NOW, started_at=NOW,
        ended_at=NOW, gpu_seconds=0.0, strategy="custom", code_ref="", data_snapshot="",
        hyperparameters={},
    )  # fmt: skip
    return HistoryRun(run, spec.encode().decode())


def end(harness: GatewayHarness, client: httpx.Client, **fields: Any) -> str:
    job_id: str = client.post("/v1/training-jobs", json=job(**fields), headers=NLP).json()["job_id"]
    client.post(f"/v1/training-jobs/{job_id}/cancel", headers=NLP)
    quota = harness.names.name(Topic.QUOTA)
    harness.wait(lambda: any(decode(r).type == JobClosed.type for r in harness.broker.dump(quota)))
    harness.wait(lambda: harness.tail.query(lambda live: live.jobs[job_id].ended))
    return job_id


def spec_of(harness: GatewayHarness, job_id: str) -> JobSpec:
    found = harness.tail.query(lambda live: live.jobs[job_id].spec)
    assert found is not None
    return found


def test_a_job_that_only_history_has_is_shown_restored_and_validated(tmp_path: Path) -> None:
    known: Any = OldRuns()
    access = HistoryAccess(lambda: Queries(known, known, known, known, known, known, known, known))
    harness = GatewayHarness(tmp_path, access)
    with served(harness) as client:
        harness.configure("nlp")
        fields = {"checkpoint": {"promote": "final"}, "hyperparameters": {"steps": 40}}
        job_id = end(harness, client, **fields)
        harness.tail._live._forget(job_id)
        harness.tail._view.changed()
        known.row = old_run(job_id, JobSpec.model_validate(job(**fields)))

        shown = client.get(f"/v1/training-jobs/{job_id}", headers=NLP).json()
        assert (shown["step"], shown["total_steps"]) == (31, 40)
        assert (shown["loss"], shown["mfu"], shown["lr"]) == (0.5, 0.4, None)
        assert shown["metrics"] == {"loss": 0.5, "mfu": 0.4}
        assert shown["last_checkpoint"]["step"] == 20

        runs = f"/training-runs/{job_id}/checkpoints"
        restored = client.post(f"{runs}/10/restore", headers=NLP)
        assert (restored.status_code, restored.json()["from_run"]) == (201, job_id)
        made = spec_of(harness, restored.json()["run_id"])
        assert (made.resume_from, made.checkpoint.resume) == (job_id, "10")

        jobs = f"/v1/training-jobs/{job_id}/checkpoints"
        validated = client.post(f"{jobs}/20/promote", headers=NLP)
        assert validated.status_code == 201
        made = spec_of(harness, validated.json()["job_id"])
        assert (made.validates, made.resume_from, made.checkpoint.resume) == (True, job_id, "20")

        for pinned in (True, False):
            answer = client.post(f"{jobs}/20/pin", json={"pinned": pinned}, headers=NLP)
            assert (answer.status_code, answer.json()["pinned"]) == (200, pinned)
        quota = harness.broker.dump(harness.names.name(Topic.QUOTA))
        asked = [event for each in quota if isinstance(event := decode(each).data, PinAdmitted)]
        assert [(each.job_id, each.step, each.pinned) for each in asked] == [
            (job_id, 20, True),
            (job_id, 20, False),
        ]

        for path in (f"{runs}/{{}}/restore", f"{jobs}/{{}}/promote"):
            for step in (30, 40):
                problem(client.post(path.format(step), headers=NLP), 404, "not-found")
            problem(client.post(path.format(20), headers=VISION), 404, "not-found")


def test_the_checkpoint_of_a_trial_is_restored_as_a_job_of_its_own(tmp_path: Path) -> None:
    harness = GatewayHarness(tmp_path)
    with served(harness) as client:
        harness.configure("nlp")
        job_id = end(harness, client)
        ref = CheckpointRef(job_id=job_id, attempt=1, step=20, world_size=1, commit_key="k")
        done = CheckpointCommitted(job_id=job_id, checkpoint=ref, size_bytes=1, objects=1)
        harness.say(done, job_id)
        path = f"/v1/training-jobs/{job_id}/checkpoints"
        harness.wait(lambda: client.get(path, headers=NLP).json()["checkpoints"])
        trial = TrialRef(study_id="lr-1", number=3, metrics=("loss",))
        with harness.tail._lock:
            live = harness.tail._live
            spec = spec_of_trial(live.jobs[job_id].spec, trial)
            live._change(job_id, spec=spec)
        harness.tail._view.changed()
        answer = client.post(f"/training-runs/{job_id}/checkpoints/20/restore", headers=NLP)
        assert answer.status_code == 201, answer.text
        assert spec_of(harness, answer.json()["run_id"]).trial is None


def spec_of_trial(spec: JobSpec | None, trial: TrialRef) -> JobSpec:
    assert spec is not None
    return spec.model_copy(update={"trial": trial})


def test_the_steps_from_which_an_ended_run_can_be_begun_are_the_schedulers() -> None:
    state = Scheduler().initial()
    points = [
        CheckpointRef(job_id="a", attempt=1, step=step, world_size=1, commit_key="k")
        for step in (30, 40)
    ]
    state.ended["a"] = EndedRun.of("nlp", NOW, points)
    assert starts_of_ended(Copies([state]), "a") == [30, 40]
    assert starts_of_ended(Copies([state]), "b") == []
    assert starts_of_ended(Copies([state], "newer"), "a") == []
