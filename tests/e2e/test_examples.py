"""Every job file of examples/ runs on the real platform as its comments say."""

from __future__ import annotations

import os
import signal
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from gangline.sdk import Gangline
from gangline_schemas.api.jobs import Job
from support.fixtures.platform import RunningPlatform
from support.harnesses import paced_script
from support.harnesses.log_watch import LogWatch
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
END_S = 600.0
PACED_SCRIPT = ["python", str(Path(paced_script.__file__)), "train.py"]


def run(client: Gangline, file: str, **overrides: object) -> Job:
    """Submit an example and see it succeed."""
    job = client.submit(EXAMPLES / file, overrides=overrides)
    ended = client.wait(job.job_id, END_S)
    log = "\n".join(f"[{line.rank}] {line.text}" for line in client.logs(job.job_id, tail=50))
    assert ended.state == "succeeded", f"{ended.reason}\n{ended.failure}\n{log}"
    assert ended.restarts == 0, f"{ended.failure}\n{log}"
    return ended


def said(client: Gangline, job: Job) -> list[tuple[int, str]]:
    """(rank, text) of the whole log, read to its end."""
    return [(line.rank, line.text) for line in client.logs(job.job_id, follow=True)]


def test_every_example_is_run_here() -> None:
    found = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.yaml")}
    assert found == {
        "train-fsdp.yaml", "train-single.yaml", "train-elastic.yaml", "train-parallel.yaml",
        "shell.yaml", "torchrun-script/job.yaml", "metrics-script/job.yaml",
        "fsdp-script/job.yaml", "hf-trainer-script/job.yaml",
        "pipeline/pipeline.yaml",  # in test_pipelines.py
    }  # fmt: skip


def test_shell(client: Gangline) -> None:
    job = run(client, "shell.yaml")
    lines = said(client, job)
    for rank in (0, 1):
        texts = [text for of, text in lines if of == rank]
        assert texts[0] == f"rank {rank} of 2 in attempt 1 of {job.job_id}"
        assert texts[-1] == "hello"


def test_an_unmodified_torchrun_script(client: Gangline) -> None:
    job = run(client, "torchrun-script/job.yaml")
    epochs = [text for _, text in said(client, job) if text.startswith("epoch")]
    losses = [float(text.split()[-1]) for text in epochs]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize(
    "file",
    [
        "train-fsdp.yaml",
        "train-single.yaml",
        pytest.param("train-elastic.yaml", marks=pytest.mark.nightly),
        pytest.param("train-parallel.yaml", marks=pytest.mark.nightly),
    ],
)
def test_training(client: Gangline, file: str) -> None:
    job = run(client, file)
    wait_until("its last step", lambda: client.get(job.job_id).step == 30)
    assert job.total_steps == 30
    losses = {step.step: step.metrics["loss"] for step in client.metrics(
        job.job_id, ["loss"], follow=True)}  # fmt: skip
    assert sorted(losses) == [*range(1, 31)]
    assert losses[30] < losses[1] - 1.0
    kept = [item for item in client.checkpoints(job.job_id) if item.status == "committed"]
    assert kept[0].step == 30


def test_metrics_script_and_going_on_from_it(client: Gangline) -> None:
    first = run(client, "metrics-script/job.yaml", **{"hyperparameters.steps": 10})
    newest = client.checkpoints(first.job_id)[0]
    assert (newest.step, newest.status) == (10, "committed")
    second = run(
        client, "metrics-script/job.yaml",
        **{"resume_from": first.job_id, "hyperparameters.steps": 20},
    )  # fmt: skip
    texts = [text for _, text in said(client, second)]
    assert "resumed after step 10" in texts
    steps = [step.step for step in client.metrics(second.job_id, ["loss"], follow=True)]
    assert sorted(set(steps)) == [*range(11, 21)]


@pytest.mark.nightly
def test_fsdp_script_goes_on_at_another_number_of_gpus(client: Gangline) -> None:
    first = run(client, "fsdp-script/job.yaml", **{"hyperparameters.steps": 20})
    saved = partial(client.checkpoints, first.job_id)
    wait_until("its last save", lambda: (20, "committed") in {(c.step, c.status) for c in saved()})
    others = {"resume_from": first.job_id, "resources.gpus": 1, "hyperparameters.steps": 30}
    second = run(client, "fsdp-script/job.yaml", **others)
    assert (0, "resumed after step 20") in said(client, second)
    by_time = {"hyperparameters.save_every": 1000, "checkpoint.interval_minutes": 0.0005}
    whole = run(client, "fsdp-script/job.yaml", **{"hyperparameters.steps": 200}, **by_time)
    assert len(client.checkpoints(whole.job_id)) > 1, "it saves by the interval of its job"
    losses = [
        {step.step: step.metrics["loss"] for step in client.metrics(
            job.job_id, ["loss"], follow=True)}
        for job in (second, whole)
    ]  # fmt: skip
    assert sorted(losses[0]) == [*range(21, 31)]
    for step, loss in losses[0].items():
        assert loss == pytest.approx(losses[1][step], abs=1e-5)


@pytest.mark.nightly
def test_a_drained_script_goes_on_after_the_last_step_that_it_reported(
    client: Gangline, platform: RunningPlatform
) -> None:
    forever = {"hyperparameters.steps": 10**6, "hyperparameters.save_every": 10**6}
    with platform.watching() as watch:
        job = client.submit(
            EXAMPLES / "fsdp-script/job.yaml",
            overrides={**forever, "checkpoint.interval_minutes": 600, "command": PACED_SCRIPT},
        ).job_id
        watch.wait_step(job, 20)
        node = watch.of("gang.allocated", job)[0].data.nodes[0].node_id
        client.drain(node)
        try:
            second = watch.wait_for(
                lambda s: s.type == "gang.allocated" and s.data.job_id == job and s.data.attempt > 1
            ).data
            watch.wait_step(job, second.resume.step + 1, attempt=2)
        finally:
            client.drain(node, drain=False)
            client.cancel(job)
        watch.wait_state(job, "cancelled")
        steps = [s.data for s in watch.seen if s.type == "worker.step" and s.data.run_id == job]
        last = max(step for report in steps if report.attempt == 1 for step in report.step)
        assert second.resume.step == last
        again = min(step for report in steps if report.attempt == 2 for step in report.step)
        assert again == last + 1


@pytest.mark.nightly  # three imports of transformers take as long as many other tests
def test_hugging_faces_trainer_goes_on_bit_for_bit_after_a_kill(
    client: Gangline, platform: RunningPlatform
) -> None:
    installed = find_spec("transformers")  # to import it here would take 6 s of CPU
    assert installed is not None
    assert installed.origin is not None
    steps, saved, again = 300, 100, 10
    overrides = {
        "hyperparameters.steps": steps,
        "hyperparameters.save_every": saved,
        "env.PYTHONPATH": str(Path(installed.origin).parents[1]),
        "env.TRANSFORMERS_VERBOSITY": "error",
    }
    with platform.watching() as watch:
        job = client.submit(EXAMPLES / "hf-trainer-script/job.yaml", overrides=overrides).job_id
        watch.wait_for(lambda s: s.type == "checkpoint.committed" and s.data.job_id == job)
        watch.wait_step(job, saved + again)  # these steps are computed twice
        ranks = {s.data.rank: s.data.pid for s in watch.of("worker.started", job)}
        os.kill(ranks[1], signal.SIGKILL)
        ended = watch.wait_state(job, "succeeded", "failed", timeout_s=300)
        assert ended.data.state == "succeeded"
        first, second = (s.data for s in watch.of("gang.allocated", job))
        assert first.resume is None
        assert second.resume.step >= saved
        assert min(watch.wait_step(job, 0, attempt=2).data.step) == second.resume.step + 1
        before, after = (losses(watch, job, attempt) for attempt in (1, 2))
    assert sorted(before | after) == [*range(1, steps + 1)]
    both = before.keys() & after.keys()
    assert len(both) >= again
    assert {step: after[step] for step in both} == {step: before[step] for step in both}
    assert after[steps] < before[1] / 2


def losses(watch: LogWatch, job: str, attempt: int) -> dict[int, float]:
    """What the first rank of an attempt reported, by step."""
    return {
        step: loss
        for report in (s.data for s in watch.of("worker.step"))
        if (report.run_id, report.attempt, report.rank) == (job, attempt, 0)
        for step, loss in zip(report.step, report.metrics.get("loss", ()), strict=False)
        if loss is not None
    }
