"""The runs of jobs in MLflow, through kills of its process while jobs are admitted and end."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gangline_schemas.base import Event
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.scheduling import (
    GangReleased,
    JobQueued,
    JobStateChanged,
    ReleaseReason,
)
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.job import JobSpec, JobState
from gangline_schemas.mlflow_workspace import family_of, mlflow_run_id
from support.builders.gangs import assigned, gang_allocated, gang_failed, gang_released
from support.harnesses.mlflow_process import MlflowProcess
from support.waiting import wait_until

mlflow = pytest.importorskip("mlflow")

AT = datetime(2026, 1, 1, tzinfo=UTC)
ENDS = {
    JobState.SUCCEEDED: (ReleaseReason.SUCCEEDED, "FINISHED"),
    JobState.FAILED: (ReleaseReason.FAILED, "FAILED"),
    JobState.CANCELLED: (ReleaseReason.CANCELLED, "KILLED"),
}
KILLS = int(os.environ.get("GANGLINE_MLFLOW_KILLS", "2"))
JOBS = 20 * KILLS


@pytest.fixture
def client(server: MlflowProcess, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", server.token)
    monkeypatch.setenv("MLFLOW_WORKSPACE", "nlp")  # the gateway sets it for users
    return mlflow.MlflowClient(tracking_uri=server.url, registry_uri=server.url)


@dataclass
class Story:
    """The life of one job: its attempts, each of some GPU seconds, and its end."""

    job_id: str
    gpu_seconds: list[float]
    end: JobState

    def spec(self) -> JobSpec:
        return JobSpec.model_validate(
            {
                "name": "sft", "team": "nlp", "project": f"p{len(self.gpu_seconds)}", "run": "x",
                "resources": {"gpus": 1}, "hyperparameters": {"lr": 0.1, "job": self.job_id},
            }
        )  # fmt: skip

    def events(self) -> Iterator[Event]:
        job_id, spec = self.job_id, self.spec()
        yield JobQueued(job_id=job_id, spec=spec, user="ada", submitted_at=AT)
        for attempt, seconds in enumerate(self.gpu_seconds, start=1):
            yield gang_allocated(job_id, spec, assigned("n1", (0,)), attempt=attempt)
            yield self._changed(attempt, JobState.RUNNING)
            is_last = attempt == len(self.gpu_seconds)
            reason = ENDS[self.end][0] if is_last else ReleaseReason.RESTARTING
            if not is_last:
                yield gang_failed(job_id, attempt, AT, failures=attempt)
            yield gang_released(job_id, attempt, AT, reason, seconds)
            if not is_last:
                yield self._changed(attempt, JobState.PENDING)
        yield self._changed(len(self.gpu_seconds), self.end)

    def _changed(self, attempt: int, state: JobState) -> JobStateChanged:
        return JobStateChanged(
            job_id=self.job_id, attempt=attempt, previous=JobState.PENDING, state=state
        )


def stories(rng: random.Random) -> list[Story]:
    return [
        Story(
            f"job-{number}",
            [float(rng.randint(1, 9)) for _ in range(rng.randint(1, 4))],
            rng.choice(list(ENDS)),
        )
        for number in range(JOBS)
    ]


def interleaved(jobs: list[Story], rng: random.Random) -> Iterator[tuple[str, Event]]:
    """All events; each job's in its order."""
    left = [(job.job_id, job.events()) for job in jobs]
    while left:
        job_id, events = rng.choice(left[:20])
        event = next(events, None)
        if event is None:
            left.remove((job_id, events))
        else:
            yield job_id, event


def runs_of(client: Any, jobs: Collection[str]) -> dict[str, Any]:
    """The runs of these jobs, by job; the server has those of other tests too."""
    experiments = [found.experiment_id for found in client.search_experiments()]
    found = client.search_runs(experiments, max_results=10 * JOBS)
    named = [run for run in found if run.info.run_name in jobs]
    assert len({run.info.run_name for run in named}) == len(named), "a job has two runs"
    return {run.info.run_name: run for run in named}


@pytest.mark.nightly  # tests/e2e/test_tracking.py kills it below jobs too
@pytest.mark.timeout(900)
def test_a_killed_server_loses_no_job_and_counts_none_twice(
    server: MlflowProcess, client: Any
) -> None:
    rng = random.Random(server.database)
    jobs = stories(rng)
    names = {job.job_id for job in jobs}
    events = list(interleaved(jobs, rng))
    kills = sorted(rng.sample(range(len(events)), KILLS))
    for number, (job_id, event) in enumerate(events):
        server.tracker.send(event, job_id)
        if number in kills:
            server.tracker.settled()
            server.end(signal.SIGKILL)
            server.start()
    server.tracker.settled()
    wait_until(
        "the ends of all jobs",
        lambda: sum(r.info.end_time is not None for r in runs_of(client, names).values()) == JOBS,
    )
    runs = runs_of(client, names)
    assert runs.keys() == names
    for job in jobs:
        run = runs[job.job_id]
        assert run.info.run_id == mlflow_run_id(job.job_id)
        assert run.info.status == ENDS[job.end][1]
        assert run.data.params == {"lr": "0.1", "job": job.job_id}
        attempts = len(job.gpu_seconds)
        assert run.data.tags["gangline.attempt"] == str(attempts)
        expected = {"gpu_seconds": sum(job.gpu_seconds), "restarts": attempts - 1.0}
        if attempts > 1:
            expected["incidents"] = attempts - 1.0
        assert run.data.metrics == {f"gangline/{name}": value for name, value in expected.items()}
    longest = max(jobs, key=lambda job: len(job.gpu_seconds))
    points = client.get_metric_history(mlflow_run_id(longest.job_id), "gangline/gpu_seconds")
    sums = [sum(longest.gpu_seconds[: at + 1]) for at in range(len(longest.gpu_seconds))]
    assert sorted((point.step, point.value) for point in points) == list(enumerate(sums, start=1))


def reported(attempt: int, steps: range, loss: float, team: str = "nlp") -> WorkerStep:
    times = tuple(1_700_000_000_000 + 1000 * step for step in steps)
    columns = {"loss": tuple(loss / step for step in steps)}
    return WorkerStep(
        run_id="reporter", team=team, attempt=attempt, rank=0, step=tuple(steps), time_ms=times,
        metrics=columns,
    )  # fmt: skip


def progress(attempt: int, step: int, loss: float, team: str = "nlp") -> RunProgress:
    return RunProgress(
        run_id="reporter", team=team, attempt=attempt, rank=0, step=step,
        time_ms=1_700_000_000_000 + 1000 * step, metrics={"loss": loss},
    )  # fmt: skip


def test_the_server_announces_its_release(server: MlflowProcess) -> None:
    assert server.tracker.announced() == {"mlflow", "tracker"}


def test_metrics_that_a_job_reports_are_metrics_of_its_run(
    server: MlflowProcess, client: Any
) -> None:
    send, run_id = server.tracker.send, mlflow_run_id("reporter")
    queued = next(Story("reporter", [1.0], JobState.SUCCEEDED).events())
    send(queued, "reporter")
    send(reported(1, range(1, 21), 1.0), "reporter")
    send(reported(2, range(11, 31), 2.0), "reporter")
    send(reported(3, range(1, 41), 9.0, team="other"), "reporter")  # a program may say so
    send(progress(3, 40, 9.0, team="other"), "other/reporter")
    send(progress(2, 30, 2.0 / 30), "nlp/reporter")
    server.tracker.settled()
    wait_until("the job's run", lambda: runs_of(client, {"reporter"}))
    wait_until("the newest value", lambda: client.get_run(run_id).data.metrics.get("loss"))
    assert client.get_run(run_id).data.metrics == {"loss": 2.0 / 30}
    expected = {step: (1.0 if step < 11 else 2.0) / step for step in range(1, 31)}
    history = client.get_metric_history(run_id, "loss")
    assert {(point.step, point.value) for point in history} == set(expected.items())
    client.log_metric(run_id, "loss", 0.5, step=31)
    assert [point.step for point in client.get_metric_history(run_id, "loss")][-1] == 31
    chart = httpx.get(
        f"{server.url}/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval",
        params={"run_ids": [run_id], "metric_key": "loss", "max_results": 10},
        headers={"Authorization": f"Bearer {server.token}", "X-MLFLOW-WORKSPACE": "nlp"},
        timeout=60,
    ).json()["metrics"]
    assert 10 <= len(chart) <= 12
    assert {(int(point["step"]), point["value"]) for point in chart} <= {
        *expected.items(),
        (31, 0.5),
    }
    server.end(signal.SIGKILL)
    server.start()
    (found,) = client.search_runs([client.get_run(run_id).info.experiment_id], "metrics.loss = 0.5")
    assert found.info.run_id == run_id


def test_runs_that_a_job_makes_show_it_and_end_with_its_attempt(
    server: MlflowProcess, client: Any
) -> None:
    job = Story("job-with-children", [1.0, 2.0], JobState.SUCCEEDED)
    events = list(job.events())
    server.tracker.send(events[0], job.job_id)
    server.tracker.settled()
    wait_until("the job's run", lambda: runs_of(client, {job.job_id}))
    experiment = runs_of(client, {job.job_id})[job.job_id].info.experiment_id
    children = []
    for attempt in ("1", "2"):
        tags = {"gangline.job": job.job_id, "gangline.attempt": attempt}
        children.append(client.create_run(experiment, tags=tags).info.run_id)
    model = client.create_logged_model(experiment, source_run_id=children[0])
    assert all(run.startswith(family_of(job.job_id)) for run in children)
    assert model.model_id.startswith(f"m-{family_of(job.job_id)}")
    until = next(at for at, event in enumerate(events) if isinstance(event, GangReleased))
    for event in events[1 : until + 1]:
        server.tracker.send(event, job.job_id)
    server.tracker.settled()
    wait_until(
        "the end of the first attempt's run",
        lambda: client.get_run(children[0]).info.status == "FAILED",
    )
    assert client.get_run(children[1]).info.status == "RUNNING"


def test_tags_that_a_client_sets_on_a_jobs_run_are_in_the_tracker(
    server: MlflowProcess, client: Any
) -> None:
    job = Story("job-with-tags", [1.0], JobState.SUCCEEDED)
    server.tracker.send(next(iter(job.events())), job.job_id)
    server.tracker.settled()
    wait_until("the job's run", lambda: runs_of(client, {job.job_id}))
    own = runs_of(client, {job.job_id})[job.job_id].info
    other = client.create_run(own.experiment_id).info.run_id
    for run_id, name in ((own.run_id, "draft"), (own.run_id, "stage"), (other, "stage")):
        client.set_tag(run_id, name, run_id)
    client.set_tag(own.run_id, "mlflow.note.content", "of MLflow")
    client.log_batch(own.run_id, tags=[mlflow.entities.RunTag("owner", "ada")])
    client.delete_tag(own.run_id, "draft")
    rows = server.tracker.client()
    select = "SELECT team, name, value, removed FROM gangline.run_tags FINAL WHERE job_id = "

    def tags() -> list[tuple[Any, ...]]:
        return sorted(map(tuple, rows.query(f"{select}'{job.job_id}'").result_rows))

    wanted = [
        ("nlp", "draft", "", True), ("nlp", "owner", "ada", False),
        ("nlp", "stage", own.run_id, False),
    ]  # fmt: skip
    wait_until("the tags", lambda: tags() == wanted)
    assert rows.query("SELECT count() FROM gangline.run_tags FINAL").result_rows == [(3,)]
