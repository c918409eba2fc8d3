"""What the gateway streams over real HTTP: metrics, events and logs, from a cursor to the end."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from gangline_gateway.ring import MAX_RECORDS
from gangline_gateway.sse import Streams
from gangline_schemas.base import Event
from gangline_schemas.events.logs import LogLine, WorkerLog
from gangline_schemas.events.workers import ExitReason, WorkerExited, WorkerStarted
from support.builders.gateway import GatewayHarness, served
from support.fixtures.gateway_http import (
    ADMIN,
    NLP,
    events,
    harness,
    http_client,
    problem,
    step,
    submit,
)

__all__ = ["harness", "http_client"]  # fixtures are used by being in this module


def log_line(job_id: str, line: int) -> WorkerLog:
    text = (LogLine(time_ms=line, stream="stdout", text=f"line {line}"),)
    return WorkerLog(
        job_id=job_id, team="nlp", attempt=1, rank=0, node_id="n", first_line=line, lines=text
    )


def test_metrics_are_streamed_and_resumed_without_loss(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    run_id = submit(http_client, gpus=56)
    path = f"/training-runs/{run_id}/metrics"
    say = harness.say
    say(step(run_id, 1, 2), run_id, run_id)
    seen: list[int] = []
    with http_client.stream("GET", path, headers=NLP) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = events(answer.iter_lines())
        assert next(stream)[1] == "history"
        say(step(run_id, 3), run_id, run_id)
        say(step("somebody-else", 3), "somebody-else", run_id)
        say(step(run_id, 9).model_copy(update={"team": "vision"}), run_id, run_id)
        last_id = ""
        for cursor, kind, data in stream:
            if kind == "progress":
                continue
            assert (kind, data["metrics"]["loss"]) == ("step", 1 / (1 + data["step"]))
            seen.append(data["step"])
            last_id = cursor
            if data["step"] == 3:
                break
    say(step(run_id, 4, 3), run_id, run_id)
    resumed = {**NLP, "Last-Event-ID": last_id}
    with http_client.stream("GET", path, headers=resumed) as answer:
        for _, kind, data in events(answer.iter_lines()):
            if kind == "progress":
                continue
            assert kind == "step"
            seen.append(data["step"])
            if data["step"] == 6:
                break
    assert seen == [1, 2, 3, 4, 5, 6]
    for wrong in ("x", "quota.0.1", "steps.99.1"):
        refused = http_client.get(path, headers={**NLP, "Last-Event-ID": wrong})
        problem(refused, 422, "invalid")
    as_json = http_client.get(path, headers={**NLP, "Accept": "application/json"})
    assert as_json.json() == {"curves": []}


def test_a_cursor_older_than_what_is_kept_is_read_from_the_bus(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    run_id = submit(http_client, gpus=55)
    path = f"/training-runs/{run_id}/metrics"
    harness.say(step(run_id, 1), run_id, run_id)
    with http_client.stream("GET", path, headers=NLP) as answer:
        last_id = next(cursor for cursor, kind, _ in events(answer.iter_lines()) if kind == "step")
    total = MAX_RECORDS + 100
    for index in range(2, total + 2):
        harness.say(step(run_id, index), run_id, run_id)
    harness.wait(
        lambda: harness.tail.query(lambda live: live.details(run_id).progress.step) > total
    )  # type: ignore[union-attr]
    seen: list[int] = []
    with http_client.stream("GET", path, headers={**NLP, "Last-Event-ID": last_id}) as answer:
        for _, kind, data in events(answer.iter_lines()):
            if kind == "progress":
                continue
            seen.append(data["step"])
            if data["step"] == total + 1:
                break
    assert seen == list(range(2, total + 2))


def test_the_stream_has_the_run_s_progress_from_now_on(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    run_id = submit(http_client, gpus=57)
    path = f"/training-runs/{run_id}/metrics"
    harness.say(step(run_id, 1), run_id, run_id)
    harness.wait(lambda: harness.tail.query(lambda live: live.details(run_id)).progress)  # type: ignore[union-attr]
    last_id, seen = "", []
    for number in (2, 3):
        headers = {**NLP, "Last-Event-ID": last_id} if last_id else NLP
        with http_client.stream("GET", path, headers=headers) as answer:
            stream = events(answer.iter_lines())
            if not last_id:
                assert next(stream)[1] == "history", "its position is taken before"
            harness.say(step(run_id, number), run_id, run_id)
            harness.say(step("somebody-else", 9), "somebody-else", run_id)
            for cursor, kind, data in stream:
                last_id = cursor or last_id
                if kind == "progress":
                    seen.append((data["run_id"], data["step"], data["metrics"]["loss"]))
                    if data["step"] == number:
                        break
    assert seen == [(run_id, 2, 1 / 3), (run_id, 3, 1 / 4)]


def run_to_the_end(harness: GatewayHarness, job_id: str) -> None:
    harness.wait(lambda: job_id in harness.tail.view().running)
    placed = harness.tail.view().details(job_id).gang.nodes[0]
    who = {
        "job_id": job_id, "attempt": 1, "rank": 0, "node_id": placed.node_id,
        "incarnation": placed.incarnation,
    }  # fmt: skip
    harness.say(WorkerStarted(**who, pid=1), job_id, job_id)
    harness.wait(lambda: harness.tail.query(lambda live: live.jobs[job_id].state == "running"))
    exited: Event = WorkerExited(**who, reason=ExitReason.FINISHED, exit_code=0)
    harness.say(exited, job_id, job_id)
    harness.wait(lambda: harness.tail.query(lambda live: live.jobs[job_id].ended))


def test_streams_of_a_job_end_when_it_has_ended(
    http_client: httpx.Client, harness: GatewayHarness
) -> None:
    harness.join("n", gpus=1)
    job_id = submit(http_client, gpus=1, hyperparameters={"steps": 10})
    base = f"/v1/training-jobs/{job_id}"
    kinds: list[str] = []
    texts: list[str] = []

    def follow_events() -> None:
        params = {"follow": True}
        with http_client.stream("GET", f"{base}/events", params=params, headers=NLP) as answer:
            kinds.extend(kind for _, kind, _ in events(answer.iter_lines()))

    def follow_logs() -> None:
        params = {"follow": True}
        with http_client.stream("GET", f"{base}/logs", params=params, headers=NLP) as answer:
            for _, kind, data in events(answer.iter_lines()):
                texts.append(data["text"] if kind == "log" else kind)

    threads = [threading.Thread(target=target) for target in (follow_events, follow_logs)]
    for thread in threads:
        thread.start()
    for line in range(3):
        harness.say(log_line(job_id, line), job_id, job_id)
    harness.say(log_line(job_id, 2), job_id, job_id)  # the agent sent it twice
    harness.say(log_line(job_id, 3).model_copy(update={"team": "vision"}), job_id, job_id)
    harness.say(step(job_id, 1, 4), job_id, job_id)
    run_to_the_end(harness, job_id)
    for thread in threads:
        thread.join(30)
    assert texts == ["line 0", "line 1", "line 2", "end"]
    assert kinds[0] == "job.submitted"
    assert kinds[-1] == "end"
    wanted = ["job.admitted", "job.queued", "gang.allocated", "worker.started", "worker.exited"]
    assert [kind for kind in kinds if kind in wanted] == wanted
    found = http_client.get(base, headers=NLP).json()
    assert (found["state"], found["step"], found["total_steps"]) == ("succeeded", 4, 10)
    with http_client.stream("GET", f"/training-runs/{job_id}/metrics", headers=NLP) as answer:
        assert [kind for _, kind, _ in events(answer.iter_lines())][-1] == "end"


def test_admins_tail_any_topic(http_client: httpx.Client) -> None:
    job_id = submit(http_client, gpus=54)
    page = http_client.get("/v1/events", params={"topic": "quota"}, headers=ADMIN).json()
    admitted = [item for item in page["events"] if item["subject"] == job_id]
    assert [item["type"] for item in admitted] == ["job.admitted"]
    params = {"topic": ["quota", "admin"], "from": "start", "follow": True}
    seen: list[str] = []
    with http_client.stream("GET", "/v1/events", params=params, headers=ADMIN) as answer:
        for cursor, kind, data in events(answer.iter_lines()):
            assert cursor
            seen.append(kind)
            if (data["subject"], kind) == (job_id, "job.admitted"):
                break
    assert seen[0] in {"team.configured", "team.configure.requested"}
    problem(http_client.get("/v1/events?topic=secrets", headers=ADMIN), 422, "invalid")


def test_streams_are_bounded(tmp_path: Path) -> None:
    harness = GatewayHarness(tmp_path)
    object.__setattr__(harness.context, "streams", Streams(1))
    with served(harness) as client:
        harness.configure("nlp")
        path = f"/v1/training-jobs/{submit(client)}/events?follow=true"
        with client.stream("GET", path, headers=NLP) as first:
            lines = first.iter_lines()  # kept: httpx closes the stream with it
            next(lines)
            assert harness.context.streams.open == 1
            problem(client.get(path, headers=NLP), 503, "busy")
        harness.wait(lambda: harness.context.streams.open == 0)
        with client.stream("GET", path, headers=NLP) as second:
            assert second.status_code == 200


def test_a_user_holds_few_streams_and_is_told_when_to_come_again(tmp_path: Path) -> None:
    scene = GatewayHarness(tmp_path)
    object.__setattr__(scene.context, "streams", Streams(2, per_user=1))
    with served(scene) as client:
        scene.configure("nlp")
        path = f"/v1/training-jobs/{submit(client)}/events?follow=true"
        with client.stream("GET", path, headers=NLP) as first:
            lines = first.iter_lines()  # kept: httpx closes the stream with it
            next(lines)
            refused = client.get(path, headers=NLP)
            assert "1 event streams at once" in problem(refused, 429, "too-many")["detail"]
            assert refused.headers["retry-after"] == "2"
            with client.stream("GET", path, headers=ADMIN) as others:
                assert others.status_code == 200
        scene.wait(lambda: scene.context.streams.open == 0)
        with client.stream("GET", path, headers=NLP) as again:
            assert again.status_code == 200
