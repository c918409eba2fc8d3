"""Runs against a small real HTTP server: what arrives, also when the server is away meanwhile."""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import gangline
from gangline.errors import CliError
from gangline.sdk import connect
from gangline.tracking import live, writer
from support.fakes.tracking_server import TrackingStub
from support.waiting import until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "UPLOAD_PERIOD_S", 0.02)
    monkeypatch.setattr(live, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(live, "LONGEST_RETRY_S", 0.05)
    monkeypatch.setattr(writer, "PERIOD_S", 0.02)


def test_everything_arrives(server: TrackingStub, kept: Path, tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"weights")
    with gangline.init(project="sft", name="one", config={"lr": 0.1}, tags=["best"]) as run:
        assert run.url == f"{server.url}/mlflow/teams/nlp/#/experiments/1/runs/{run.id}"
        run.log({"loss": 2.0})
        run.log({"loss": 1.0, "eval": {"acc": 0.5}})
        run.log({"loss": float("nan")}, step=7)
        run.log({"loss": 0.25})
        run.log({"loss": 0.5}, step=3)  # backwards
        run.config.depth = 3
        run.summary["acc"] = 0.75
        run.summary["note"] = "good"
        run.log_artifact(tmp_path / "model.bin", name="models/a b.bin")
        (tmp_path / "model.bin").write_bytes(b"later")
        assert (run.config["lr"], run.config.depth) == (0.1, 3)
        assert (run.summary["loss"], run.summary["acc"]) == (0.5, 0.75)
    assert server.experiments == {"nlp/sft": "1"}
    stored = server.run
    assert sorted(stored.steps("loss"), key=lambda one: one[0]) == [
        (0, 2.0), (1, 1.0), (3, 0.5), (7, "NaN"), (8, 0.25),
    ]  # fmt: skip
    assert stored.steps("eval/acc") == [(1, 0.5)]
    assert stored.steps("summary/acc") == [(3, 0.75)]
    assert stored.params == {"lr": "0.1", "depth": "3"}
    assert (stored.tags["best"], stored.tags["summary/note"]) == ("true", "good")
    assert stored.info["status"] == "FINISHED"
    assert server.files == {f"1/{run.id}/artifacts/models/a b.bin": b"weights"}
    assert not kept.exists()


def test_points_are_there_once_after_outages_and_lost_answers(
    server: TrackingStub, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gangline.init(name="night") as run:
        for step in range(6000):
            run.log({"loss": float(step)}, step=step)
            if step in {1000, 3000}:
                until(lambda: run.progress.uploaded > 500)
                server.stop()
            if step in {2000, 4000}:
                server.lose = 2
                server.start()
    assert server.run.steps("loss") == [(step, float(step)) for step in range(6000)]
    assert len(server.run.points) == 6000
    assert server.requests.count("POST /mlflow/teams/nlp/api/2.0/mlflow/runs/create") == 1
    assert not kept.exists()
    said = capsys.readouterr().err
    assert 1 <= said.count("is kept in") <= 4
    assert "the server is back" in said


def test_a_server_that_is_away_from_the_start(server: TrackingStub) -> None:
    server.stop()
    with gangline.init() as run:
        run.log({"loss": 1.0})
        assert (run.id, run.url) == (None, None)
        server.start()
    assert server.run.steps("loss") == [(0, 1.0)]


def test_a_server_that_takes_long(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gangline.tracking.start.FIRST_ANSWER_S", 0.05)
    server.answers.clear()
    with gangline.init() as run:
        assert "has not answered yet" in capsys.readouterr().err
        run.log({"loss": 1.0})
        server.answers.set()
    assert server.run.steps("loss") == [(0, 1.0)]


def test_a_run_that_was_made_when_the_answer_was_lost_is_made_once(server: TrackingStub) -> None:
    server.experiments["nlp/default"] = "1"
    real = TrackingStub.runs_create

    def losing(self: TrackingStub, asked: Any) -> tuple[int, Any]:
        self.lose = 1
        return real(self, asked)

    TrackingStub.runs_create = losing  # type: ignore[method-assign]
    try:
        with gangline.init() as run:
            run.log({"loss": 1.0})
    finally:
        TrackingStub.runs_create = real  # type: ignore[method-assign]
    assert server.run.steps("loss") == [(0, 1.0)]


def test_a_folder_s_files_go_up_without_a_question_for_each(
    server: TrackingStub, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    for name in ("x", "y", "z"):
        (tmp_path / "a" / name).write_text(name)
    with gangline.init() as run:
        run.log_artifact(tmp_path / "a")
    assert sorted(server.files.values()) == [b"x", b"y", b"z"]
    assert len([request for request in server.requests if request.endswith("runs/get")]) == 1


def test_what_the_server_always_fails_on_does_not_hold_up_the_rest(
    server: TrackingStub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faulty_name = "odd"
    with gangline.init(config={"odd": 1, "lr": 2}) as run:
        for step in range(20):
            run.log({"loss": 1.0} if step != 7 else {"loss": 1.0, "odd": 2.0}, step=step)
    assert [step for step, _ in server.run.steps("loss")] == [*range(20)]
    assert (server.run.params, server.run.info["status"]) == ({"lr": "2"}, "FINISHED")
    said = capsys.readouterr().err
    assert said.count("left out: odd: ") == 2
    assert run.folder is not None
    assert not run.folder.exists()


def test_nothing_is_lost_while_the_server_fails_on_everything(
    server: TrackingStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gangline.tracking.sync.FIRST_RETRY_S", 0.001)
    server.faulty_name = "loss"
    with gangline.init() as run:
        for step in range(50):
            run.log({"loss": 1.0}, step=step)
    assert "fails on too much of the run" in capsys.readouterr().err
    assert run.folder is not None
    with connect() as client:
        with pytest.raises(CliError, match="fails on too much"):
            list(client.sync(run.folder))
        server.faulty_name = ""
        list(client.sync(run.folder))
    assert [step for step, _ in server.run.steps("loss")] == [*range(50)]


def test_what_is_left_when_the_server_stays_away_is_uploaded_by_sync(
    server: TrackingStub, kept: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    with gangline.init(config={"lr": 1}) as run:
        run.log({"loss": 1.0})
        until(lambda: run.progress.uploaded == 1)
        server.stop()
        run.log({"loss": 2.0})
        run.log_artifact(tmp_path / "a")
        run.finish(exit_code=1, timeout_s=0.2)
    assert "gangline sync" in capsys.readouterr().err
    server.start()
    until(lambda: not kept.exists())  # its thread continues while the process lives
    assert server.run.steps("loss") == [(0, 1.0), (1, 2.0)]
    assert server.run.info["status"] == "FAILED"
    assert [*server.files.values()] == [b"x"]


def test_a_refused_metric_costs_no_other_one(
    server: TrackingStub, capsys: pytest.CaptureFixture[str]
) -> None:
    server.bad_name = "odd"
    with gangline.init() as run:
        for step in range(20):
            run.log({"loss": 1.0, **({"odd": 2.0} if step == 7 else {})}, step=step)
    assert len(server.run.steps("loss")) == 20
    assert server.run.steps("odd") == []
    assert capsys.readouterr().err.count("left out: odd: no such name") == 1


def test_a_refused_parameter_costs_no_other_one(
    server: TrackingStub, capsys: pytest.CaptureFixture[str]
) -> None:
    with gangline.init(config={"lr": 0.1}) as first:
        pass
    with gangline.init(run_id=first.id, config={"depth": 3, "lr": 0.2, "width": 4}):
        pass
    assert server.run.params == {"lr": "0.1", "depth": "3", "width": "4"}
    assert capsys.readouterr().err.count("left out: lr: changed") == 1


def test_a_removed_run_ends_the_uploads_and_not_the_script(
    server: TrackingStub, capsys: pytest.CaptureFixture[str], kept: Path
) -> None:
    run = gangline.init()
    server.runs.clear()
    run.log({"loss": 1.0})
    until(lambda: "uploads end" in capsys.readouterr().err)
    run.log({"loss": 2.0})
    run.finish()
    assert "not all is uploaded" in capsys.readouterr().err
    assert kept.exists()


@pytest.mark.parametrize("status", [200, 404, 405])
def test_a_proxy_that_answers_with_pages_is_waited_for(
    server: TrackingStub, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    with gangline.init() as run:
        server.page, server.page_status = "<html>no backend</html>", status
        run.log({"loss": 1.0})
        asked = len(server.requests)
        until(lambda: len(server.requests) > asked + 2)
        server.page = ""
    assert server.run.steps("loss") == [(0, 1.0)]
    assert "left out" not in capsys.readouterr().err


def test_a_wrong_token_is_an_error_at_once(
    server: TrackingStub, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_TOKEN", "wrong")
    with pytest.raises(CliError, match="give a token"):
        gangline.init()
    assert gangline.active_run() is None
    assert not kept.exists()


def test_no_platform_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GANGLINE_URL", "GANGLINE_TOKEN", "MLFLOW_TRACKING_URI", "GANGLINE_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(tmp_path))
    with pytest.raises(CliError) as caught:
        gangline.init(dir=tmp_path / "kept")
    assert 'mode="offline"' in caught.value.hint
    assert caught.value.__notes__ == [caught.value.hint], "a traceback shows it"


def test_a_token_of_several_teams(server: TrackingStub) -> None:
    server.teams = ("nlp", "vision")
    with pytest.raises(CliError, match=r"nlp, vision.*team="):
        gangline.init()
    with gangline.init(team="nlp") as run:
        run.log({"loss": 1.0})
    assert server.run.steps("loss") == [(0, 1.0)]


def test_config_does_not_change(server: TrackingStub) -> None:
    with gangline.init(config={"lr": 0.1}) as run:
        run.config.update({"lr": 0.1, "depth": 2})
        with pytest.raises(ValueError, match=r"lr: is '0.1' already"):
            run.config.lr = 0.2
        with pytest.raises(ValueError, match="prompt: "):
            run.config.prompt = "x" * 7000
        with pytest.raises(AttributeError, match="absent"):
            _ = run.config.absent
    assert server.run.params == {"lr": "0.1", "depth": "2"}
    with pytest.raises(ValueError, match="'bad%': "):
        gangline.init(config={"bad%": 1})
    with pytest.raises(TypeError, match="config: a list has no names"):
        gangline.init(config=[1])
    assert len(server.runs) == 1


def test_a_namespace_is_a_config(server: TrackingStub) -> None:
    with gangline.init(config=argparse.Namespace(lr=0.1, sizes=[1, 2])):
        pass
    assert server.run.params == {"lr": "0.1", "sizes": "[1, 2]"}


def test_the_module_logs_to_the_active_run(server: TrackingStub) -> None:
    with pytest.raises(RuntimeError, match=r"gangline\.init"):
        gangline.log({"loss": 1.0})
    first = gangline.init(name="first")
    gangline.log({"loss": 1.0})
    second = gangline.init(name="second")
    assert first.finished
    gangline.log({"loss": 2.0}, step=5)
    gangline.config.update({"lr": 0.1})
    assert gangline.run is second
    assert (gangline.config["lr"], gangline.summary["loss"]) == (0.1, 2.0)
    gangline.finish()
    assert gangline.run is None
    with pytest.raises(RuntimeError, match="finished"):
        second.log({"loss": 3.0})
    assert first.id is not None
    assert second.id is not None
    assert server.runs[first.id].steps("loss") == [(0, 1.0)]
    assert server.runs[second.id].steps("loss") == [(5, 2.0)]


def test_threads_share_a_run(server: TrackingStub) -> None:
    with gangline.init() as run:
        threads = [
            threading.Thread(target=lambda: [run.log({"a": 1.0}) for _ in range(500)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [step for step, _ in server.run.steps("a")] == [*range(2000)]


def test_ends_by_exceptions(server: TrackingStub) -> None:
    for error, status in ((ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")):
        server.runs.clear()
        with pytest.raises(error), gangline.init():
            raise error
        assert server.run.info["status"] == status


def test_a_forked_child_leaves_the_run_alone(
    server: TrackingStub, capfd: pytest.CaptureFixture[str]
) -> None:
    with gangline.init() as run:
        run.log({"loss": 1.0})
        child = os.fork()
        if child == 0:
            run.log({"loss": 2.0})
            run.log({"loss": 3.0})
            run.finish()
            with gangline.init(run_id=run.id) as own:
                own.log({"child": 5.0})
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run.log({"loss": 4.0})
    assert server.run.steps("loss") == [(0, 1.0), (1, 4.0)]
    assert server.run.steps("child") == [(0, 5.0)]
    assert server.run.info["status"] == "FINISHED"
    assert capfd.readouterr().err.count("forked") == 1


def test_a_run_is_continued(server: TrackingStub) -> None:
    with gangline.init() as first:
        first.log({"loss": 1.0})
    with gangline.init(run_id=first.id) as second:
        second.log({"loss": 0.5}, step=1)
        until(lambda: server.run.info["status"] == "RUNNING")
    assert second.id == first.id
    assert server.run.steps("loss") == [(0, 1.0), (1, 0.5)]
    assert server.run.info["status"] == "FINISHED"
    with pytest.raises(CliError, match="no such thing"):
        gangline.init(run_id="0" * 32)


def test_disabled_and_unknown_modes(server: TrackingStub, kept: Path) -> None:
    with gangline.init(mode="disabled", config={"lr": 1}) as run:
        run.log({"loss": 1.0})
        assert run.config.lr == 1
    assert server.requests == []
    assert not kept.exists()
    with pytest.raises(ValueError, match="mode: 'offlin' is none of online, offline, disabled"):
        gangline.init(mode="offlin")  # type: ignore[arg-type]


def test_the_server_is_asked_in_batches(server: TrackingStub) -> None:
    with gangline.init(mode="online") as run:
        for step in range(5000):
            run.log({"loss": 1.0}, step=step)
    batches = [path for path in server.requests if path.endswith("log-batch")]
    assert len(batches) < 500
