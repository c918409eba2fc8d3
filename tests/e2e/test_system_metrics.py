"""System metrics on the whole way: from a job's processes to commands, comparisons and MLflow."""

from __future__ import annotations

import httpx
import pytest

from gangline.sdk import connect
from gangline_schemas.job import JobSpec
from gangline_schemas.mlflow_workspace import mlflow_run_id
from support.fixtures.platform import RunningPlatform
from support.harnesses.cli_run import runner
from support.waiting import wait_until

BUSY = "import time; ends = time.time() + 60\nwhile time.time() < ends: sum(range(10_000))"

KINDS = {
    "cpu_utilization_percentage", "system_memory_usage_megabytes", "disk_usage_percentage",
    "disk_available_megabytes", "disk_read_megabytes_per_second",
}  # fmt: skip


def test_a_job_without_any_code_for_it_has_system_metrics(
    platform: RunningPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(platform.client.url, platform.client.token) as client:
        spec = JobSpec.model_validate(
            {
                "name": "busy",
                "team": "default",
                "command": ["python", "-c", BUSY],
                "resources": {"gpus": 1},
            }
        )
        job_id = client.submit(spec).job_id
        try:
            curves = wait_until("curves", lambda: client.curves(job_id, system=True) or None)
            names = {curve.name.rpartition("/")[2] for curve in curves}
            assert names >= KINDS
            assert client.curves(job_id) == [], "of the system alone"
            run = runner(capsys)
            shown = run("--data-dir", str(platform.data_dir), "metrics", job_id, "--system").out
            assert {kind for kind in KINDS if f" {kind} " in shown} == KINDS, shown
            (used,) = client.resources([job_id])
            assert used.points[-1].cpu is not None
            tagged = {"stage": "dev"}
            assert client.tag(job_id, tagged).tags == tagged
            found = wait_until("tag", lambda: [*client.runs(where="tags.stage = 'dev'")] or None)
            assert [(run.run_id, run.tags) for run in found] == [(job_id, tagged)]
        finally:
            client.cancel(job_id)
        client.wait(job_id)
        (axis, *_) = client.parallel([job_id]).axes
        assert axis.name == "gpu_hours"


def test_they_are_metrics_of_the_job_s_mlflow_run(platform: RunningPlatform) -> None:
    pytest.importorskip("mlflow")
    headers = {"Authorization": f"Bearer {platform.client.token}"}
    with (
        connect(platform.client.url, platform.client.token) as client,
        httpx.Client(
            base_url=f"{platform.client.url}/mlflow/teams/default/api/2.0/mlflow",
            headers=headers,
            timeout=120,
        ) as mlflow,
    ):
        (job,) = client.runs(where="name = 'busy'", limit=1)
        run_id = mlflow_run_id(job.run_id)

        def logged() -> list[dict[str, object]]:
            answer = mlflow.get("/runs/get", params={"run_id": run_id})
            metrics = answer.json().get("run", {}).get("data", {}).get("metrics", [])
            return [each for each in metrics if each["key"].startswith("system/")]

        key = wait_until("metrics of the run", lambda: logged() or None)[0]["key"]
        history = mlflow.get("/metrics/get-history", params={"run_id": run_id, "metric_key": key})
        assert history.json()["metrics"]
