"""`gangline up --slots 0`: nodes without GPUs join, and run jobs without GPUs alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.sdk import Gangline, connect
from support.harnesses.cli_run import runner
from support.harnesses.up_process import UpProcess
from support.waiting import wait_until

WAIT_S = 400.0
_NEED = {"gpus": 0, "cpus": 1, "memory_gb": 0.2}

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
"""It starts a platform of its own."""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    process = UpProcess(tmp_path / "cpus", "--slots", "0", "--nodes", "2")
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture
def gateway(up: UpProcess) -> Iterator[Gangline]:
    with connect(up.client.url, up.client.token) as client:
        yield client


def test_a_platform_without_gpus_runs_jobs_studies_and_pipelines_to_their_ends(
    up: UpProcess, gateway: Gangline, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert [(node.gpus, node.status) for node in gateway.nodes()] == [([], "ready")] * 2
    job = {"name": "count", "team": "default", "command": ["python", "-c", "print(42)"]}
    made = gateway.submit({**job, "resources": {**_NEED, "nodes": 2}})
    assert gateway.wait(made.job_id, WAIT_S).state == "succeeded"
    wait_until("its lines", lambda: len([*gateway.logs(made.job_id)]) > 1, WAIT_S)
    assert [line.text for line in gateway.logs(made.job_id)] == ["42", "42"]

    report = "from gangline_worker import report; report({'score': ${{ x }}}, 1)"
    study = gateway.submit_study({
        "name": "grid", "team": "default", "objective": {"metric": "score"}, "sampler": "grid",
        "space": {"x": {"type": "choice", "values": [3, 2]}}, "limits": {"parallel": 2, "ahead": 2},
        "job": {"command": ["python", "-c", report], "resources": _NEED},
    })  # fmt: skip
    ended = gateway.wait_for_study(study.study_id, WAIT_S)
    assert ended.best is not None
    assert ended.best.value == 2

    gateway.apply_pipeline({
        "name": "one", "team": "default",
        "steps": {"a": {"job": {"run": "echo 1 > $GANGLINE_OUT/n", "resources": _NEED},
                        "out": {"n": "score"}}},
    })  # fmt: skip
    run = gateway.wait_pipeline_run(gateway.run_pipeline("one").run_id, WAIT_S)
    assert run.state == "succeeded"

    never = gateway.submit({**job, "resources": {"gpus": 1}})
    wait_until("its reason", lambda: "GPU" in gateway.explain(never.job_id).message)
    assert gateway.cancel(never.job_id).job_id == never.job_id
    monkeypatch.setenv("GANGLINE_URL", up.client.url)
    monkeypatch.setenv("GANGLINE_TOKEN", up.client.token)
    asked = runner(capsys)("nodes")
    assert asked.code == 0
    assert "node-1" in asked.out
