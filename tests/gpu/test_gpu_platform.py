"""The whole platform over this machine's GPUs: a job trains on one, is killed, and resumes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gangline.sdk import connect
from gangline_schemas.job import JobState
from support.fixtures.gpu import needs_gpus
from support.fixtures.platform import RunningPlatform, start_platform
from support.harnesses.log_watch import job_spec
from support.waiting import wait_until

STEPS = 400
SYSTEM = {"gpu_utilization_percentage", "gpu_memory_usage_percentage", "gpu_power_usage_watts"}


@pytest.fixture(scope="module")
def gpu_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    """One node that offers the GPUs that it has."""
    data_dir = tmp_path_factory.mktemp("gpus")
    settings = {"GANGLINE_SYSTEM_METRICS_S": "0.5", "GANGLINE_HEALTH_INTERVAL_S": "1"}
    running, _ = start_platform(data_dir, nodes=1, slots=None, environment=settings)
    with running:
        shared = RunningPlatform(running, running.start(), data_dir)
        yield shared
        shared.close()


@needs_gpus(1)
def test_a_job_trains_on_a_gpu_is_killed_and_resumes(gpu_platform: RunningPlatform) -> None:
    with (
        connect(gpu_platform.client.url, gpu_platform.client.token) as client,
        gpu_platform.watching() as watch,
    ):
        (node,) = client.nodes()
        model = node.gpus[0].model
        assert model not in {"cpu", "gpu"}
        spec = job_spec(
            "on-a-gpu",
            resources={"gpus": 1, "gpu_type": model, "memory_per_gpu_gb": 1},
            hyperparameters={"dim": 256, "heads": 4, "layers": 4, "batch_size": 16, "steps": STEPS},
            checkpoint={"interval_minutes": 0.02},
        )
        job_id = client.submit(spec).job_id
        saved = watch.wait_for(
            lambda seen: seen.type == "checkpoint.committed" and seen.data.job_id == job_id
        )
        started = watch.wait_for(
            lambda seen: seen.type == "worker.started" and seen.data.job_id == job_id
        )
        os.kill(started.data.pid, signal.SIGKILL)
        assert client.wait(job_id).state == JobState.SUCCEEDED
        watch.settle()
        steps = [s.data for s in watch.of("worker.step") if s.data.run_id == job_id]
        again = [step for batch in steps if batch.attempt == 2 for step in batch.step]
        assert min(again) > saved.data.checkpoint.step, "what was saved was computed again"
        assert max(again) == STEPS
        columns = [batch.metrics for batch in steps]
        assert all("mfu_peak_measured" not in column for column in columns), "a known GPU"
        used = [mfu for column in columns for mfu in column.get("mfu", ()) if mfu is not None]
        assert len(used) >= STEPS
        assert all(0 < mfu < 1 for mfu in used)

        def system() -> set[str]:
            curves = client.curves(job_id, system=True)
            return {curve.name.rpartition("/")[2] for curve in curves}

        wait_until("metrics of the GPU", lambda: system() >= SYSTEM)
        (run,) = client.runs(where="name = 'on-a-gpu'", limit=1)
        assert run.gpu_model == model
        assert watch.dead_letters() == {}
