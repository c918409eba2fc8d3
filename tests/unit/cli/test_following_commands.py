"""Commands that follow a job: `watch`, `logs --follow`, `metrics --follow`."""

from __future__ import annotations

import pytest

from support.fakes.stub_gateway import FAILURE, Reply, Stub, event, job
from support.fixtures.commands import CURVES, JOB, LINES, ONE, all_routes
from support.harnesses.cli_run import Runner


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 100), ("cancelled", 103)])
def test_watch_ends_with_the_jobs_exit_code(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr("gangline.commands.watch.REFRESH_S", 0.0)
    monkeypatch.setattr("gangline.commands.watch.LINGER_S", 0.0)
    all_routes(stub)
    stub.on("GET", ONE, job(step=1), job(step=1), job(step=2), job(state, failure=FAILURE, step=3))
    shown = gangline("watch", JOB)
    assert shown.code == code
    assert [line.split("  ")[1] for line in shown.out.splitlines()] == [
        "step 1/30", "step 2/30", "step 3/30",
    ]  # fmt: skip
    assert ("rank 1 on node-1 failed first" in shown.err) == (state == "failed")


def test_watch_waits_for_the_last_step_of_a_job_that_succeeded(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.commands.watch.REFRESH_S", 0.0)
    all_routes(stub)
    stub.on("GET", ONE, job(step=28), job("succeeded", step=29), job("succeeded", step=30))
    shown = gangline("watch", JOB)
    assert shown.code == 0
    assert shown.out.splitlines()[-1].split("  ")[:2] == ["succeeded", "step 30/30"]


def test_watch_tells_of_a_failure_that_the_job_survives(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.commands.watch.REFRESH_S", 0.0)
    monkeypatch.setattr("gangline.commands.watch.LINGER_S", 0.0)
    failure = FAILURE | {"attempt": 1, "cause": "process", "action": "restart"}
    again = job(step=2, attempt=2, failure=failure)
    stub.on("GET", ONE, job(step=3), job(step=3), again, again, job("succeeded", failure=failure))
    stub.on("GET", f"/v1/runs/{JOB}/curves", CURVES)
    shown = gangline("watch", JOB)
    assert shown.err.splitlines()[0] == "attempt 1 failed (process, rank 1 first): restart"
    assert shown.err.count("attempt 1 failed") == 1


def test_watch_that_times_out_is_not_finished(gangline: Runner, stub: Stub) -> None:
    all_routes(stub)
    shown = gangline("watch", JOB, "--timeout", "0", "--json")
    assert shown.code == 101
    assert [item["state"] for item in shown.json_lines] == ["running"]


def test_logs_follow_over_a_broken_connection_each_line_once(
    gangline: Runner, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.sse.FIRST_DELAY_S", 0.0)
    texts = [event("log", line, f"logs.0.{index}") for index, line in enumerate(LINES)]
    end = event("end", {"state": "succeeded"}, "logs.0.9")
    stub.on("GET", f"{ONE}/logs", Reply(stream="".join(texts[:2])),
            Reply(stream="".join(texts[1:]) + end))  # fmt: skip
    options = {"rank": "1", "attempt": "1", "tail": "10", "contains": "nan"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    shown = gangline("logs", JOB, "-f", "--errors", *words)
    assert shown.out.splitlines() == [
        f"[{line['rank']}] {line['text']}".replace("\x1b", "\ufffd") for line in LINES
    ]
    assert "trying again" in shown.err
    first, second = stub.asked
    asked = {**options, "follow": "true", "errors": "true"}
    assert first.query == {name: [value] for name, value in asked.items()}
    assert second.headers["last-event-id"] == "logs.0.1"


def test_metrics_follow(gangline: Runner, stub: Stub) -> None:
    step = {"step": 3, "attempt": 1, "rank": 0, "time_ms": 1, "metrics": {"loss": 1.5}}
    text = event("history", CURVES) + event("step", step, "steps.0.1") + event("end", {})
    stub.on("GET", f"/training-runs/{JOB}/metrics", Reply(stream=text))
    shown = gangline("metrics", JOB, "--name", "loss", "-f")
    assert shown.out.splitlines() == ["step 1  loss 4", "step 2  loss 2", "step 3  loss 1.5"]
