"""/v1/pipelines: who sees and changes what, errors by field, and requests with their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline_bus.codec import Received
from gangline_gateway.app import over
from gangline_gateway.app_context import KeyLocks
from gangline_gateway.followed import Copies
from gangline_gateway.publish import SOURCE
from gangline_gateway.routes import pipelines
from gangline_pipelines.core.checks import problems
from gangline_schemas.artifacts import (
    Artifact,
    ArtifactFile,
    ArtifactManifest,
    manifest_key,
    object_key,
)
from gangline_schemas.base import Event, FieldError
from gangline_schemas.catalog import topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.pipeline_requests import RunRequested
from gangline_schemas.events.pipelines import RunQueued, RunStarted
from gangline_schemas.pipeline_file import PipelineSpec
from gangline_service.tokens import Principal, Role
from gangline_storage import digest_bytes
from gangline_storage.local import LocalStore
from support.builders.pipelines import TEAM, PipelineRun, chain
from support.clients import routes

ADA = Principal(name="ada", role=Role.MEMBER, teams=frozenset({TEAM}))
EVE = Principal(name="eve", role=Role.MEMBER, teams=frozenset({"vision"}))
READER = Principal(name="page", role=Role.SERVICE, teams=frozenset({TEAM}))
SPEC = chain(triggers={"new": {"snapshot": "web-*"}}).model_dump(
    mode="json", exclude_defaults=True, exclude_none=True
)
SNAPSHOT = {"team": TEAM, "snapshot": "web-1@xxh3-" + "0" * 32}
Ask = Callable[..., httpx.Response]


class Context:
    """The parts of the gateway that these routes use; requests reach the decider at once."""

    answer_wait_s = 1.0

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(folder)
        self.world = PipelineRun()
        self.tail = self.publisher = self
        self.count = 0
        self.submitting = KeyLocks()

    def clock(self) -> Any:
        return self.world.now

    def pipelines(self) -> Copies[Any]:
        return Copies([self.world.state])

    async def publish(self, subject: str, event: Event, request_id: str | None = None) -> str:
        self.count += 1
        name = request_id or f"r{self.count}"
        envelope = Envelope(name, SOURCE, self.world.now, subject, event)
        self.world.take(Received(envelope, topic_of(event.type).value, 0, self.count))
        return name

    async def until(self, question: Callable[[Any], Any], _timeout_s: float) -> Any:
        return question(None)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path)


@pytest.fixture
def ask(context: Context) -> Ask:
    app = over(context)  # type: ignore[arg-type]

    def ask(method: str, path: str, caller: Principal = ADA, **given: Any) -> httpx.Response:
        return routes.ask(app, caller, path, method, **given)

    return ask


def run_of(context: Context) -> str:
    return context.world.events(RunStarted)[-1].run_id  # type: ignore[attr-defined,no-any-return]


def test_a_pipeline_is_applied_run_shown_and_explained(context: Context, ask: Ask) -> None:
    applied = ask("PUT", "/v1/pipelines/p", json=SPEC)
    assert (applied.status_code, applied.json()["revision"]) == (200, 1)
    assert ask("PUT", "/v1/pipelines/p", json=SPEC).json()["revision"] == 1
    changed = {**SPEC, "description": "new"}
    assert ask("PUT", "/v1/pipelines/p", json=changed).json()["revision"] == 2
    begun = ask("POST", "/v1/pipelines/p/runs", json={"params": {}})
    assert begun.status_code == 201
    run = begun.json()["run_id"]
    assert run == run_of(context)
    context.world.finish()
    details = ask("GET", f"/v1/pipeline-runs/{run}").json()
    assert details["steps"] == {"succeeded": 3}
    assert [step["name"] for step in details["step_rows"]] == ["prepare", "train", "report"]
    why = ask("GET", f"/v1/pipeline-runs/{run}/steps/train").json()
    assert why["why"] == "it did not run before"
    assert "in.data" in why["parts"]
    (listed,) = ask("GET", "/v1/pipelines").json()["pipelines"]
    assert listed["last"]["run_id"] == run
    assert "spec" not in listed
    assert [one["run_id"] for one in ask("GET", "/v1/pipeline-runs").json()["runs"]] == [run]


def test_others_are_answered_while_a_pipeline_is_checked(
    ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of 1 MiB takes 100 ms of CPU time."""
    checked_by: list[int] = []

    def noted(spec: PipelineSpec) -> list[FieldError]:
        checked_by.append(threading.get_ident())
        return problems(spec)

    monkeypatch.setattr(pipelines, "problems", noted)
    assert ask("PUT", "/v1/pipelines/p", json=SPEC).status_code == 200
    assert ask("PUT", "/v1/pipelines/p?dry_run=true", json=SPEC).status_code == 200
    assert len(checked_by) == 2
    assert threading.get_ident() not in checked_by


def test_a_repeated_idempotency_key_is_the_same_run(context: Context, ask: Ask) -> None:
    spec = chain(params={"lr": 0.1}).model_dump(mode="json", exclude_defaults=True)
    ask("PUT", "/v1/pipelines/p", json=spec)
    body = {"params": {"lr": 0.5}}
    key = {"Idempotency-Key": "k-1"}
    first = ask("POST", "/v1/pipelines/p/runs", json=body, headers=key)
    again = ask("POST", "/v1/pipelines/p/runs", json=body, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["run_id"] == again.json()["run_id"]
    assert len(context.world.events(RunStarted)) == 1
    context.world.finish()
    ended = ask("POST", "/v1/pipelines/p/runs", json=body, headers=key)
    assert (ended.status_code, ended.json()["state"]) == (200, "succeeded")
    other = ask("POST", "/v1/pipelines/p/runs", json={"params": {"lr": 1.0}}, headers=key)
    assert other.status_code == 409
    assert other.json()["type"].endswith("key-reused")
    ask("POST", "/v1/pipelines/p/runs", json=body)
    assert len(context.world.events(RunStarted)) == 2


def test_a_key_that_was_used_before_the_answers_were_forgotten_begins_no_second_run(
    context: Context, ask: Ask
) -> None:
    """Requests of another gateway, whose view is behind, reach the service a second time."""
    ask("PUT", "/v1/pipelines/p", json=SPEC)
    asked = RunRequested(team=TEAM, pipeline="p", user="ada")
    asyncio.run(context.publish("p", asked, "same"))
    context.world.state.requests.clear()
    asyncio.run(context.publish("p", asked, "same"))
    assert len(context.world.events(RunStarted)) == 1
    assert not context.world.events(RunQueued)


def test_another_team_neither_sees_nor_changes_anything(context: Context, ask: Ask) -> None:
    ask("PUT", "/v1/pipelines/p", json=SPEC)
    ask("POST", "/v1/pipelines/p/runs", json={})
    run = run_of(context)
    assert ask("GET", "/v1/pipelines", EVE).json()["pipelines"] == []
    assert ask("GET", "/v1/pipeline-runs", EVE).json()["runs"] == []
    assert ask("GET", "/v1/pipelines/p/runs", EVE).json()["runs"] == []
    for method, path, body in (
        ("GET", "/v1/pipelines/p", None),
        ("GET", f"/v1/pipelines/p?team={TEAM}", None),
        ("DELETE", "/v1/pipelines/p", None),
        ("POST", "/v1/pipelines/p/runs", {}),
        ("POST", "/v1/pipelines/p/pause", {}),
        ("GET", f"/v1/pipeline-runs/{run}", None),
        ("GET", f"/v1/pipeline-runs/{run}/steps/train", None),
        ("GET", f"/v1/pipeline-runs/{run}/steps/train/outputs/model", None),
        ("GET", f"/v1/pipeline-runs/{run}/steps/train/outputs/model/content?path=a", None),
        ("POST", f"/v1/pipeline-runs/{run}/cancel", None),
        ("POST", f"/v1/pipeline-runs/{run}/retry", None),
    ):
        assert ask(method, path, EVE, json=body).status_code == 404, path
    assert ask("PUT", "/v1/pipelines/p", EVE, json=SPEC).status_code == 403
    assert ask("POST", "/v1/data/snapshots", EVE, json=SNAPSHOT).status_code == 403
    assert ask("POST", "/v1/pipelines/p/runs", READER, json={}).status_code == 403
    assert ask("GET", "/v1/pipelines/p", READER).status_code == 200
    jobs = {"a": {"job": {"run": "true", "resources": {"gpus": 1}}}}
    mine = {"name": "p", "team": "vision", "steps": jobs}
    assert ask("PUT", "/v1/pipelines/p", EVE, json=mine).status_code == 200
    both = Principal(name="root", role=Role.ADMIN, teams=frozenset({TEAM, "vision"}))
    unclear = ask("GET", "/v1/pipelines/p", both)
    assert unclear.status_code == 422
    assert "nlp, vision have a pipeline p" in unclear.text
    assert ask("GET", "/v1/pipelines/p?team=vision", both).json()["team"] == "vision"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"steps": {}}, "steps"),
        ({"name": "q"}, "name"),
        ({"triggers": {"t": {"schedule": "61 0 * * *"}}}, "triggers.t.schedule"),
        ({"steps": {"a": {"job": SPEC["steps"]["train"]["job"], "after": ["b"]}}}, "steps.a.after"),
        ({"secret": "x"}, "secret"),
    ],
)
def test_a_wrong_file_is_refused_with_the_field(
    ask: Ask, change: dict[str, Any], field: str
) -> None:
    answer = ask("PUT", "/v1/pipelines/p", json={**SPEC, **change})
    assert answer.status_code == 422
    assert any(field in error["field"] for error in answer.json()["errors"])


def test_a_dry_run_keeps_nothing(ask: Ask) -> None:
    assert ask("PUT", "/v1/pipelines/p?dry_run=true", json=SPEC).json()["steps"] == 3
    assert ask("GET", "/v1/pipelines").json()["pipelines"] == []


def test_a_run_is_cancelled_and_continued_and_the_pipeline_paused_and_removed(
    context: Context, ask: Ask
) -> None:
    ask("PUT", "/v1/pipelines/p", json=SPEC)
    ask("POST", "/v1/pipelines/p/runs", json={})
    run = run_of(context)
    queued = ask("POST", "/v1/pipelines/p/runs", json={}).json()
    assert queued["state"] == "queued"
    shown = ask("GET", f"/v1/pipeline-runs/{queued['run_id']}").json()
    assert (shown["state"], shown["step_rows"]) == ("queued", [])
    assert ask("GET", f"/v1/pipeline-runs/{queued['run_id']}", EVE).status_code == 404
    assert ask("GET", "/v1/pipelines/p/runs").json()["runs"][0]["state"] == "queued"
    assert ask("POST", f"/v1/pipeline-runs/{queued['run_id']}/cancel", EVE).status_code == 404
    ended = ask("POST", f"/v1/pipeline-runs/{queued['run_id']}/cancel").json()
    assert (ended["state"], ended["reason"]) == ("cancelled", "cancelled by ada")
    assert ask("GET", f"/v1/pipeline-runs/{queued['run_id']}").status_code == 404
    refused = ask("POST", f"/v1/pipeline-runs/{run}/retry")
    assert (refused.status_code, "is running" in refused.text) == (409, True)
    assert ask("POST", f"/v1/pipeline-runs/{run}/cancel").json()["state"] == "stopping"
    (led_to,) = ask("POST", "/v1/data/snapshots", json=SNAPSHOT).json()["runs"]
    assert led_to in [one["run_id"] for one in ask("GET", "/v1/pipeline-runs").json()["runs"]]
    assert ask("POST", "/v1/data/snapshots", json=SNAPSHOT).json()["runs"] == []
    assert ask("POST", "/v1/pipelines/p/pause", json={"paused": True}).json()["paused"] == "by ada"
    other = {**SNAPSHOT, "snapshot": "web-2@xxh3-" + "0" * 32}
    skipped = ask("POST", "/v1/data/snapshots", json=other)
    assert (skipped.status_code, skipped.json()["runs"]) == (201, [])
    assert ask("POST", "/v1/pipelines/p/pause", json={"paused": False}).json()["paused"] == ""
    assert ask("DELETE", "/v1/pipelines/p").status_code == 200
    assert ask("GET", "/v1/pipelines/p").status_code == 404
    assert ask("POST", "/v1/pipelines/p/runs", json={}).status_code == 404


def test_parameters_that_the_file_does_not_have_are_refused(ask: Ask) -> None:
    ask("PUT", "/v1/pipelines/p", json=SPEC)
    answer = ask("POST", "/v1/pipelines/p/runs", json={"params": {"lr": 1}})
    assert answer.status_code == 409
    assert "params.lr: there is no such parameter" in answer.text


def test_the_files_of_an_output_are_listed_and_downloaded(
    context: Context, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ArtifactFile(path="a/b.txt", size_bytes=5, xxh3=digest_bytes(b"hello"))
    raw = ArtifactManifest(files=(file,)).encode()
    made = Artifact(digest=digest_bytes(raw), size_bytes=5, files=1)
    given = context.world.outputs_of
    monkeypatch.setattr(
        context.world,
        "outputs_of",
        lambda job: [
            written.model_copy(update={"artifact": made}) if written.name == "model" else written
            for written in given(job)
        ],
    )
    ask("PUT", "/v1/pipelines/p", json=SPEC)
    ask("POST", "/v1/pipelines/p/runs", json={})
    context.world.finish()
    place = f"/v1/pipeline-runs/{run_of(context)}/steps/train/outputs"
    gone = ask("GET", f"{place}/model")
    assert (gone.status_code, "was deleted from the store" in gone.text) == (404, True)
    context.store.put(manifest_key(TEAM, made.digest), raw)
    assert ask("GET", f"{place}/model").json()["files"] == [file.model_dump()]
    assert ask("GET", f"{place}/other").status_code == 404
    content = f"{place}/model/content"
    assert ask("GET", content, params={"path": "a/b.txt"}).status_code == 404
    context.store.put(object_key(TEAM, file), b"hello")
    answer = ask("GET", content, params={"path": "a/b.txt"})
    assert (answer.status_code, answer.content) == (200, b"hello")
    assert answer.headers["content-disposition"] == "attachment"
    for path in ("a", "../a/b.txt", "/etc/passwd"):
        assert ask("GET", content, params={"path": path}).status_code == 404
    context.store.put(object_key(TEAM, file), b"hell")
    assert ask("GET", content, params={"path": "a/b.txt"}).status_code == 409
    context.store.put(manifest_key(TEAM, made.digest), raw + b" ")
    damaged = ask("GET", f"{place}/model")
    assert (damaged.status_code, "damaged" in damaged.text) == (409, True)
