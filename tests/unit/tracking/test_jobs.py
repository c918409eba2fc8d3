"""A script inside a job: the agent gets its metrics, MLflow's server the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import gangline
from gangline.errors import CliError
from gangline.sdk import connect
from gangline_schemas.mlflow_workspace import mlflow_run_id
from gangline_schemas.rank_protocol import FromRank, Report
from gangline_worker import reporting
from support.fakes.agent_end import AgentEnd
from support.fakes.tracking_server import TOKEN, StoredRun, TrackingStub
from support.waiting import until

JOB = "sft-0123456789"


@pytest.fixture
def agent(
    server: TrackingStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentEnd]:
    """This process is rank 0 of a job, with access to MLflow and nothing else."""
    end = AgentEnd(tmp_path)
    environment = {
        "GANGLINE_JOB_ID": JOB, "RANK": "0", "GANGLINE_AGENT_SOCKET": end.path,
        "GANGLINE_HYPERPARAMETERS": '{"lr": 0.5}',
        "MLFLOW_TRACKING_URI": f"{server.url}/mlflow/teams/nlp", "MLFLOW_TRACKING_TOKEN": TOKEN,
        "MLFLOW_EXPERIMENT_NAME": "nlp/assistants",
        "MLFLOW_RUN_CONTEXT": json.dumps({"mlflow.parentRunId": mlflow_run_id(JOB)}),
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GANGLINE_URL")
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(tmp_path / "no-platform"))
    monkeypatch.setattr(reporting, "_reporter", None)
    info = {"run_id": mlflow_run_id(JOB), "experiment_id": "1", "status": "RUNNING"}
    info["artifact_uri"] = "mlflow-artifacts:/1/own/artifacts"
    server.runs[mlflow_run_id(JOB)] = StoredRun(info, {})
    yield end
    end.hang_up()


def heard(said: Sequence[FromRank], name: str) -> list[tuple[int, float | None]]:
    """Steps and values of a metric in the reports."""
    return [
        (step, value)
        for report in said
        if isinstance(report, Report)
        for step, value in zip(report.step, report.metrics.get(name, ()), strict=False)
    ]


def steps(agent: AgentEnd, name: str) -> list[tuple[int, float | None]]:
    """What the agent has received, once that is something."""
    return heard(agent.wait_for(lambda said: bool(heard(said, name))), name)


def test_the_job_s_own_run(agent: AgentEnd, server: TrackingStub, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    run = gangline.init(config={"lr": 0.1, "depth": 3}, tags=["best"])
    assert dict(run.config) == {"lr": 0.5, "depth": 3}
    run.log({"loss": 2.0, "eval": {"acc": 0.25}}, step=1)
    run.log({"loss": 1.0})
    run.log_artifact(tmp_path / "notes")
    run.finish()
    assert steps(agent, "loss") == [(1, 2.0), (2, 1.0)]
    assert heard(agent.said, "eval/acc")[0] == (1, 0.25)
    stored = server.runs[mlflow_run_id(JOB)]
    assert (stored.params, stored.points) == ({"depth": "3"}, set())
    assert stored.tags == {"best": "true"}
    assert stored.info["status"] == "RUNNING"  # the job's is not the script's to set
    assert server.files == {"1/own/artifacts/notes": b"x"}
    assert len(server.runs) == 1


def test_a_job_s_run_that_is_made_later(
    agent: AgentEnd, server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.tracking.live.FIRST_RETRY_S", 0.01)
    stored = server.runs.pop(mlflow_run_id(JOB))
    with gangline.init(tags="best") as run:
        asked = len(server.requests)
        until(lambda: len(server.requests) > asked + 1)
        server.runs[mlflow_run_id(JOB)] = stored
        assert run.id == mlflow_run_id(JOB)
    assert stored.tags == {"best": "true"}


def test_metrics_alone_need_no_folder_and_no_server(
    agent: AgentEnd, server: TrackingStub, kept: Path
) -> None:
    with gangline.init() as run:
        run.log({"loss": 1.0})
    assert steps(agent, "loss") == [(0, 1.0)]
    assert server.requests == []
    assert not kept.exists()


def test_other_ranks_log_nothing_unless_asked(
    agent: AgentEnd, server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    with gangline.init(config={"depth": 3}) as quiet:
        quiet.log({"loss": 1.0})
        assert quiet.config.lr == 0.5
    with gangline.init(all_ranks=True) as run:
        run.log({"loss": 2.0})
    assert steps(agent, "loss") == [(0, 2.0)]
    assert server.requests == []


def test_a_named_run_is_the_job_s_child(agent: AgentEnd, server: TrackingStub) -> None:
    with gangline.init(project="side", name="trial") as run:
        run.log({"loss": 1.0})
    assert run.id is not None
    stored = server.runs[run.id]
    assert stored.tags["mlflow.parentRunId"] == mlflow_run_id(JOB)
    assert stored.steps("loss") == [(0, 1.0)]
    assert server.experiments == {"nlp/side": "1"}
    with gangline.init(name="another"):
        pass
    assert "nlp/assistants" in server.experiments
    assert heard(agent.said, "loss") == []


def test_a_job_without_mlflow_keeps_what_is_not_a_metric(
    agent: AgentEnd, monkeypatch: pytest.MonkeyPatch, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with gangline.init(config={"depth": 3}) as run:
        run.log({"loss": 1.0})
    assert steps(agent, "loss") == [(0, 1.0)]
    assert "no MLFLOW_TRACKING_URI" in capsys.readouterr().err
    assert len([*kept.glob("*/run.json")]) == 1
    with pytest.raises(CliError, match="no MLFLOW_TRACKING_URI"):
        gangline.init(name="child")


def test_a_job_s_folder_without_its_run_does_not_hold_up_the_others(
    agent: AgentEnd, server: TrackingStub, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.tracking.sync.FIRST_RETRY_S", 0.001)
    for name in (None, "child"):
        with gangline.init(mode="offline", name=name, config={"depth": 3}, dir=kept / f"{name}"):
            pass
    server.runs.clear()
    with connect(server.url, TOKEN) as client, pytest.raises(CliError, match="not there yet"):
        list(client.sync(kept / "None", kept / "child"))
    assert server.run.params == {"depth": "3"}


def test_an_offline_run_in_a_job(agent: AgentEnd, server: TrackingStub, kept: Path) -> None:
    with gangline.init(mode="offline", config={"depth": 3}) as run:
        run.log({"loss": 1.0})
    assert steps(agent, "loss") == [(0, 1.0)]
    assert server.requests == []
    assert len([*kept.glob("*/run.json")]) == 1


def test_without_the_worker_library_metrics_go_to_the_job_s_mlflow_run(
    agent: AgentEnd, server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.tracking.start.worker_report", lambda: None)
    with gangline.init() as run:
        run.log({"loss": 1.0})
    assert server.runs[mlflow_run_id(JOB)].steps("loss") == [(0, 1.0)]
    assert heard(agent.said, "loss") == []


def test_the_operator_may_choose_an_unencrypted_way(
    agent: AgentEnd, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://gateway.invalid/mlflow")
    run = gangline.init(config={"depth": 3})
    run.finish(exit_code=0, timeout_s=0.1)
    said = capsys.readouterr().err
    assert "not encrypted" not in said
    assert "not all is uploaded" in said


def test_ranks_of_torchrun_outside_of_jobs(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with gangline.init() as run:
        run.log({"loss": 1.0})
    assert server.requests == []
    assert "GANGLINE_JOB_ID" not in os.environ
