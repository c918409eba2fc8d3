"""Which platform is asked, with whose token, and what happens when it is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.connection import find_gateway
from gangline.errors import CliError, ExitCode
from gangline.sdk import Gangline, connect
from gangline.transport import Transport
from support.fakes.stub_gateway import NODE, TOKEN, Reply, Stub, job, problem, serving
from support.harnesses.cli_run import runner

QUEUE = {"queue": [], "pending_jobs": 0, "pending_gpus": 0}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GANGLINE_URL", "GANGLINE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GANGLINE_DATA_DIR", str(tmp_path / "default"))


@pytest.fixture
def other() -> Iterator[Stub]:
    with serving() as found:
        yield found


def platform_at(folder: Path, url: str, token: str = TOKEN) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "client.json").write_text(json.dumps({"url": url, "token": token}))
    return folder


def test_the_platform_of_the_data_directory_is_found(stub: Stub, tmp_path: Path) -> None:
    stub.on("GET", "/v1/nodes", {"nodes": [NODE]})
    with connect(data_dir=platform_at(tmp_path / "mine", stub.url)) as client:
        assert [node.node_id for node in client.nodes()] == ["node-0"]
    platform_at(tmp_path / "default", stub.url)
    with connect() as client:
        assert client.url == stub.url


def test_no_platform_is_told_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    shown = runner(capsys)("queue")
    assert shown.code == 1
    assert "gangline up" in shown.err
    assert "Traceback" not in shown.err


def test_a_given_data_directory_goes_before_the_environment(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_URL", "http://127.0.0.1:9")
    with connect(data_dir=platform_at(tmp_path / "mine", stub.url)) as client:
        assert client.url == stub.url


def test_the_local_token_goes_to_no_other_gateway(
    stub: Stub, other: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = platform_at(tmp_path / "default", stub.url)
    monkeypatch.setenv("GANGLINE_URL", other.url)
    with connect() as client, pytest.raises(CliError) as refused:
        client.nodes()
    assert "GANGLINE_TOKEN" in refused.value.hint
    with connect(other.url, data_dir=folder) as client, pytest.raises(CliError):
        client.nodes()
    assert all("authorization" not in item.headers for item in other.asked)


@pytest.mark.parametrize("url", ["http://gangline.example:80", "ftp://127.0.0.1", "127.0.0.1:80"])
def test_a_token_never_travels_in_the_clear(url: str) -> None:
    with pytest.raises(CliError) as refused:
        find_gateway(url, TOKEN, None)
    assert refused.value.code is ExitCode.USAGE
    assert TOKEN not in refused.value.message + refused.value.hint


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://127.0.0.1:abc", "http://127.0.0.1:99999", "https://xn--", "https://:1"],
)
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(CliError, match="is not a URL") as told:
        Transport(url, TOKEN)
    assert told.value.code == ExitCode.USAGE


def test_a_token_may_end_with_a_line_and_holds_no_other_letters(stub: Stub) -> None:
    stub.on("GET", "/v1/whoami", {})
    assert Transport(stub.url, f"{TOKEN}\n").call("GET", "/v1/whoami") == {}
    for token in ("töken", "two words", "a\nb"):
        with pytest.raises(CliError, match="the token holds letters") as told:
            Transport(stub.url, token)
        assert token not in told.value.message


def test_redirects_are_not_followed(stub: Stub) -> None:
    stub.on("GET", "/v1/queue", problem(302, "moved", "elsewhere"))
    with connect(stub.url, TOKEN) as client, pytest.raises(CliError, match="status 302"):
        client.queue()
    assert len(stub.asked) == 1


def test_a_proxy_of_the_environment_is_not_asked(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    stub.on("GET", "/v1/queue", QUEUE)
    with connect(stub.url, TOKEN) as client:
        assert client.queue().pending_jobs == 0


def client_of(stub: Stub, notices: list[str]) -> Gangline:
    return Gangline(Transport(stub.url, TOKEN, notice=notices.append, sleep=lambda _: None))


AWAY = problem(503, "bus-away", "the bus did not answer")


def test_questions_are_repeated_while_a_part_is_away(stub: Stub) -> None:
    stub.on("GET", "/v1/queue", AWAY, AWAY, QUEUE)
    notices: list[str] = []
    with client_of(stub, notices) as client:
        assert client.queue().queue == []
    assert len(notices) == 2
    assert "the bus did not answer; trying again" in notices[0]


@pytest.mark.parametrize(("said", "least_s"), [("7", 7.0), ("999", 30.0), ("soon", 0.0)])
def test_what_came_too_soon_is_sent_again_after_the_pause_that_the_gateway_asks_for(
    stub: Stub, said: str, least_s: float
) -> None:
    path = "/v1/training-jobs/a/cancel"
    soon = replace(problem(429, "too-many", "wait a little"), retry_after=said)
    stub.on("POST", path, soon, job("pending"))
    slept: list[float] = []
    with Gangline(Transport(stub.url, TOKEN, sleep=slept.append)) as client:
        client.cancel("a")
    assert len(stub.asked) == 2
    assert slept == [max(least_s, 0.5)]


def test_a_stream_without_room_waits_as_long_as_it_is_asked_to(stub: Stub) -> None:
    path = "/v1/training-jobs/a/logs"
    full = replace(problem(429, "too-many", "wait a little"), retry_after="3")
    stub.on("GET", path, full, Reply(stream="event: end\ndata: {}\n\n"))
    slept: list[float] = []
    with Gangline(Transport(stub.url, TOKEN, sleep=slept.append)) as client:
        assert list(client.logs("a", follow=True)) == []
    assert slept == [3.0]


def test_it_gives_up_in_the_end(stub: Stub) -> None:
    stub.on("GET", "/v1/queue", AWAY)
    with client_of(stub, []) as client, pytest.raises(CliError, match="the bus did not answer"):
        client.queue()
    assert len(stub.asked) == 7


def test_a_submission_is_repeated_under_one_key(stub: Stub) -> None:
    stub.on("POST", "/v1/training-jobs", AWAY, job("pending"))
    spec = {"name": "a", "team": "nlp", "run": "true", "resources": {"gpus": 1}}
    with client_of(stub, []) as client:
        client.submit(spec, overrides={"resources.gpus": 2})
    first, second = stub.asked
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert second.json["resources"]["gpus"] == 2
    assert spec["resources"] == {"gpus": 1}, "what the caller gave is not changed"


def test_the_start_of_a_run_is_repeated_under_one_key(stub: Stub) -> None:
    begun = {
        "run_id": "p-1", "team": "nlp", "pipeline": "p", "number": 1, "state": "running",
        "trigger": "manual", "kind": "manual", "subject": "a request", "params": {},
        "user": "ada", "reason": "", "started_at": None, "ended_at": None, "steps": {},
        "jobs": 0, "gpu_seconds": 0.0, "retries": 0,
    }  # fmt: skip
    stub.on("POST", "/v1/pipelines/p/runs", AWAY, begun)
    with client_of(stub, []) as client:
        client.run_pipeline("p")
    first, second = stub.asked
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_a_refusal_is_not_repeated(stub: Stub) -> None:
    stub.on("POST", "/v1/training-jobs/a/cancel", problem(409, "ended", "the job has ended"))
    with client_of(stub, []) as client, pytest.raises(CliError, match="has ended") as refused:
        client.cancel("a")
    assert refused.value.code is ExitCode.TOOL_ERROR
    assert len(stub.asked) == 1


def test_a_dead_gateway_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as gone:
        url = gone.url
    shown = runner(capsys)("--url", url, "--token", TOKEN, "queue")
    assert shown.code == 1
    assert f"nothing answers at {url}" in shown.err
    assert "gangline up" in shown.err
    assert TOKEN not in shown.err


def test_a_torn_client_file_is_told(tmp_path: Path) -> None:
    folder = platform_at(tmp_path / "mine", "x")
    (folder / "client.json").write_text('{"url": ')
    with pytest.raises(CliError, match="cannot be read"):
        connect(data_dir=folder)
