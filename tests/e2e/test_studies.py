"""A study on the platform: trials pause and continue, and neither kill changes what it finds."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.sdk import Gangline, connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import Runner, runner
from support.harnesses.log_watch import PACED, SMALL_MODEL, LogWatch
from support.waiting import wait_until

TRIALS = int(os.environ.get("GANGLINE_STUDY_TRIALS", "8"))
STEPS = 18
STUDY: dict[str, Any] = {
    "name": "eight-trials",
    "team": "default",
    "project": "studies",
    "objective": {"metric": "eval_loss"},
    "space": {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}},
    "sampler": "random",
    "seed": 5,
    "stopping": {"kind": "asha", "mode": "promote", "min_steps": 2, "max_steps": STEPS},
    "limits": {"trials": TRIALS, "parallel": 3, "ahead": 2},
    "job": {
        "command": PACED,
        "env": {"PAUSE_S": "0.3"},
        "resources": {"gpus": 1, "memory_per_gpu_gb": 0.25},
        "checkpoint": {"interval_minutes": 0.02},
        "stop_grace_seconds": 10,
        "hyperparameters": {**SMALL_MODEL, "steps": STEPS, "eval_every_steps": 2},
    },
}


pytestmark = pytest.mark.nightly
"""Some 40 s on idle cores."""


@pytest.fixture
def gateway(platform: RunningPlatform) -> Iterator[Gangline]:
    with connect(platform.client.url, platform.client.token) as client:
        yield client


def kill_a_rank(watch: LogWatch, study_id: str) -> str:
    """Kill the rank of a promoted trial as it starts, before its next rung; its job."""
    found = watch.wait_for(lambda s: s.type == "trial.promoted" and s.data.study_id == study_id)
    job_id = f"{study_id}-t{found.data.number}-{found.data.part}"
    started = watch.wait_for(lambda s: s.type == "worker.started" and s.data.job_id == job_id)
    os.kill(started.data.pid, signal.SIGKILL)
    return job_id


def test_eight_trials_with_a_kill_of_the_service_and_one_of_a_rank(
    platform: RunningPlatform, watch: LogWatch, gateway: Gangline
) -> None:
    study_id = gateway.submit_study(STUDY).study_id
    watch.wait_for(lambda s: s.type == "trial.measured" and s.data.study_id == study_id)
    os.kill(platform.pid("studies-0"), signal.SIGKILL)
    killed = kill_a_rank(watch, study_id)
    ended = gateway.wait_for_study(study_id, 240)
    assert (ended.reason, ended.trials.total) == ("trials", TRIALS)
    trials = [*gateway.trials(study_id)]
    ends = Counter(trial.state for trial in trials)
    assert set(ends) <= {"completed", "pruned"}, ends
    completed = [trial for trial in trials if trial.state == "completed"]
    assert ended.best is not None
    assert ended.best.value == min(trial.value or 9.0 for trial in completed)

    watch.settle()
    proposed = [s.data for s in watch.of("trial.proposed") if s.data.study_id == study_id]
    assert [each.number for each in proposed] == list(range(len(proposed)))
    known = {each.number: each.parameters for each in proposed}
    assert {trial.number: trial.parameters for trial in trials}.items() <= known.items()
    over = [
        s.data.number
        for s in watch.seen
        if s.type in {"trial.completed", "trial.pruned", "trial.failed"}
        and s.data.study_id == study_id
    ]
    assert sorted(over) == sorted(known.keys() - withdrawn(watch, study_id))
    assert max(s.data.attempt for s in watch.of("worker.started", killed)) >= 2
    assert [s for s in watch.of("trial.failed") if s.data.study_id == study_id] == []
    resumed = [s.data for s in watch.of("job.admitted") if s.data.spec.resume_from is not None]
    promoted = [s.data for s in watch.of("trial.promoted") if s.data.study_id == study_id]
    mine = [each for each in resumed if each.job_id.startswith(study_id)]
    assert len(mine) == len(promoted) > 0

    importance = gateway.study_importance(study_id)
    assert importance.trials == len(completed)
    course = gateway.best_so_far(study_id)
    assert course.points[-1].value == ended.best.value
    wait_until("runs of the trials", lambda: with_runs(gateway, study_id) == set(known))


def withdrawn(watch: LogWatch, study_id: str) -> set[int]:
    return {s.data.number for s in watch.of("trial.withdrawn") if s.data.study_id == study_id}


def with_runs(gateway: Gangline, study_id: str) -> set[int]:
    """The numbers of the trials that have a run in history."""
    found = gateway.runs(where=f"name LIKE '{study_id}-t%'", kind="job")
    return {int(run.name.rpartition("-t")[2]) for run in found}


KINDS = """
import time
from gangline_worker import hyperparameters, report
kind = hyperparameters()["kind"]
for step in range(1, 101):
    time.sleep(0.2)
    report({"score": float("nan") if kind == "nan" and step == 3 else 1 / step}, step)
    if kind == "memory" and step == 3:
        raise MemoryError("no room for the batch")
"""


def test_trials_that_run_out_of_memory_or_are_nan_and_one_that_is_preempted(
    watch: LogWatch, gateway: Gangline
) -> None:
    study_id = gateway.submit_study({
        "name": "kinds", "team": "default", "objective": {"metric": "score"}, "sampler": "grid",
        "space": {"kind": {"type": "choice", "values": ["good", "nan", "memory"]}},
        "limits": {"parallel": 3, "ahead": 3, "failed": 0},
        "job": {"command": ["python", "-c", KINDS], "stop_grace_seconds": 5,
                "resources": {"gpus": 0, "cpus": 0.5, "memory_gb": 0.2}},
    }).study_id  # fmt: skip
    good = f"{study_id}-t0"
    watch.wait_for(lambda s: s.type == "trial.measured" and s.data.study_id == study_id)
    wide = {"gpus": 2, "cpus_per_gpu": 4, "memory_per_gpu_gb": 0.1}
    watch.submit("wide", command=["python", "-c", "pass"], resources=wide)
    released = watch.wait_for(lambda s: s.type == "gang.released" and s.data.job_id == good).data
    assert released.reason == "preempted"
    ended = gateway.wait_for_study(study_id, 240)
    assert (ended.reason, ended.trials.total) == ("exhausted", 3)
    trials = {str(trial.parameters["kind"]): trial for trial in gateway.trials(study_id)}
    assert trials["good"].state == "completed"
    assert trials["good"].value == 1 / 100
    assert (trials["nan"].state, trials["nan"].reason) == ("pruned", "not_finite")
    assert (trials["memory"].state, trials["memory"].reason) == ("failed", "out_of_memory")
    assert ended.best is not None
    assert ended.best.number == trials["good"].number == 0
    watch.wait_for(
        lambda s: s.type == "worker.started" and s.data.job_id == good and s.data.attempt >= 2
    )


MLFLOW = """
import mlflow, sys
with mlflow.start_run():
    for step in (1, 2, 3):
        mlflow.log_metric("val_loss", float(sys.argv[1]) / step, step=step)
"""


def test_an_objective_that_only_mlflow_has_and_the_command_line(
    platform: RunningPlatform, gateway: Gangline, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("GANGLINE_URL", platform.client.url)
    monkeypatch.setenv("GANGLINE_TOKEN", platform.client.token)
    gangline: Runner = runner(capsys)
    (tmp_path / "study.yaml").write_text(
        "name: by-mlflow\nteam: default\nobjective: {metric: val_loss}\nsampler: grid\n"
        "space: {x: {type: choice, values: [3.0, 6.0]}}\nlimits: {parallel: 2, ahead: 2}\n"
        "job: job.yaml\n"
    )
    (tmp_path / "job.yaml").write_text(
        "workdir: .\nresources: {gpus: 1, memory_per_gpu_gb: 0.25}\n"
        'command: [python, log.py, "${{ x }}"]\n'
    )
    (tmp_path / "log.py").write_text(MLFLOW)
    done = gangline("study", "submit", str(tmp_path / "study.yaml"), "--wait", "-y")
    study_id = done.out.strip()
    assert done.code == 0, done.err
    assert "best val_loss 1 by trial" in " ".join(done.err.split())
    table = gangline("study", "trials", study_id, "--order-by", "value").out
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["completed", "completed"]
    found = gateway.study(study_id)
    assert found.best is not None
    assert found.best.parameters == {"x": 3.0}
    exported = gangline("study", "export", study_id, "--journal", str(tmp_path / "j"))
    assert exported.code == 0, exported.err


def test_a_study_that_is_stopped_leaves_no_job(gateway: Gangline) -> None:
    forever = {**STUDY, "name": "forever", "stopping": "none", "limits": {"trials": 4}}
    forever["job"] = {**STUDY["job"], "hyperparameters": {**SMALL_MODEL, "steps": 100_000}}
    study_id = gateway.submit_study(forever).study_id
    wait_until("a trial", lambda: gateway.study(study_id).trials.running)
    stopped = gateway.stop_study(study_id)
    assert stopped.state in {"ending", "ended"}
    ended = gateway.wait_for_study(study_id, 120)
    assert ended.reason == "stopped"
    left = [job.job_id for job in gateway.list(name="forever") if not job.ended]
    assert left == []
