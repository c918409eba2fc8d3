"""Artifacts through the real gateway: the unmodified client, on a local folder and on real S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline.local.kafka import EmbeddedKafka
from gangline.local.s3proxy import S3Proxy
from gangline_schemas.mlflow_registry import ALIASES_PATH, AliasesQuery, AliasRow
from support.harnesses.mlflow_gateway import MlflowGateway, mlflow_gateway
from support.harnesses.mlflow_process import peak_bytes
from support.waiting import wait_until

mlflow = pytest.importorskip("mlflow")

FILES = "/api/2.0/mlflow-artifacts/artifacts"
CONTENT = bytes(range(256)) * 4096
LIMIT = 30_000_000


LOCAL = pytest.param("local", marks=pytest.mark.nightly)
"""A folder, as the platform of e2e/test_mlflow.py has it."""


@pytest.fixture(scope="module", params=[LOCAL, "s3"])
def served(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlflowGateway]:
    folder = tmp_path_factory.mktemp(f"artifacts-{request.param}")
    with ExitStack() as stack:
        own = {"GANGLINE_MLFLOW_ARTIFACT_BYTES_OF": json.dumps({"vision": LIMIT})}
        if request.param == "s3":
            proxy = stack.enter_context(S3Proxy(folder / "s3"))
            own |= {"GANGLINE_STORE_URL": proxy.url, **proxy.environment}
        yield stack.enter_context(mlflow_gateway(kafka.bootstrap, folder / "server", own))


@pytest.fixture
def http(served: MlflowGateway) -> Iterator[httpx.Client]:
    with client_of(served, "nlp") as client:
        yield client


@contextmanager
def client_of(served: MlflowGateway, team: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {served.tokens[team]}"}
    url = served.tracking_uri(team)
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        yield client


@contextmanager
def mlflow_client(served: MlflowGateway, **more: str) -> Iterator[Any]:
    """MLflow's own client as a user of the team nlp has it."""
    own = {"MLFLOW_TRACKING_TOKEN": served.tokens["nlp"], **more}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in own.items():
            patched.setenv(name, value)
        mlflow.set_tracking_uri(served.tracking_uri("nlp"))
        yield mlflow.MlflowClient()


def test_the_client_s_files_come_back(served: MlflowGateway, tmp_path: Path) -> None:
    source = tmp_path / "model"
    (source / "deep" / "er").mkdir(parents=True)
    for name in ("weights.bin", "deep/größe 日本.txt", "deep/er/100%.txt"):
        (source / name).write_bytes(CONTENT + name.encode())
    with mlflow_client(served) as client:
        run = client.create_run(client.create_experiment(f"files-{time.time_ns()}"))
        run_id = run.info.run_id
        client.log_artifacts(run_id, str(source), "model")
        client.log_text(run_id, "two nodes", "notes.txt")
        top = {(item.path, item.is_dir, item.file_size) for item in client.list_artifacts(run_id)}
        assert top == {("model", True, None), ("notes.txt", False, 9)}
        assert client.list_artifacts(run_id, "notes.txt") == []
        there = client.download_artifacts(run_id, "model", str(tmp_path))
        found = {
            path.relative_to(there).as_posix(): path.read_bytes()
            for path in Path(there).rglob("*")
            if path.is_file()
        }
    assert found == {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("asked", "status", "span"),
    [
        (None, 200, (0, len(CONTENT))),
        ("bytes=0-99", 206, (0, 100)),
        (f"bytes={len(CONTENT) - 5}-", 206, (len(CONTENT) - 5, len(CONTENT))),
        ("bytes=-7", 206, (len(CONTENT) - 7, len(CONTENT))),
        ("bytes=5-2", 200, (0, len(CONTENT))),
        ("bytes=0-1,5-6", 200, (0, len(CONTENT))),
        (f"bytes={len(CONTENT)}-", 416, (0, 0)),
    ],
)
def test_ranges(http: httpx.Client, asked: str | None, status: int, span: tuple[int, int]) -> None:
    path = f"{FILES}/ranges/file.bin"
    if http.head(path).status_code == 404:
        assert http.put(path, content=CONTENT).status_code == 200
    answer = http.get(path, headers={"Range": asked} if asked else {})
    assert (answer.status_code, answer.content) == (status, CONTENT[slice(*span)])
    if status == 206:
        whole = f"bytes {span[0]}-{span[1] - 1}/{len(CONTENT)}"
        assert answer.headers["content-range"] == whole
    head = http.head(path)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(CONTENT)))
    assert head.headers["accept-ranges"] == "bytes"


def test_the_ui_s_downloads_have_ranges_too(served: MlflowGateway, http: httpx.Client) -> None:
    with mlflow_client(served) as client:
        run_id = client.create_run(client.create_experiment(f"ui-{time.time_ns()}")).info.run_id
        client.log_text(run_id, "0123456789", "a page.html")
    wanted = {"run_uuid": run_id, "path": "a page.html"}
    page = http.get("/get-artifact", params=wanted, headers={"Range": "bytes=3-5"})
    assert (page.status_code, page.text) == (206, "345")
    assert page.headers["content-disposition"] == 'attachment; filename="a page.html"'
    assert page.headers["x-content-type-options"] == "nosniff"
    gone = http.get("/get-artifact", params={**wanted, "path": "none"})
    assert (gone.status_code, gone.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")


def test_deleted_files_are_gone_and_their_neighbours_stay(http: httpx.Client) -> None:
    for name in ("a/1", "a/2", "ab/1"):
        assert http.put(f"{FILES}/deletes/{name}", content=b"x").status_code == 200
    for _ in range(2):
        assert http.delete(f"{FILES}/deletes/a").status_code == 200
    listed = http.get(FILES, params={"path": "deletes"}).json()["files"]
    assert [file["path"] for file in listed] == ["ab"]
    assert http.get(f"{FILES}/deletes/a/1").status_code == 404
    assert http.get(f"{FILES}/deletes/ab/1").content == b"x"
    assert http.delete(f"{FILES}/workspaces/nlp").status_code == 400


def test_an_upload_that_breaks_off_leaves_nothing(http: httpx.Client) -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(12 << 20)  # S3 has a first part by then
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        http.put(f"{FILES}/broken/file.bin", content=broken())
    assert http.get(f"{FILES}/broken/file.bin").status_code == 404
    assert http.get(FILES, params={"path": "broken"}).json() == {}


def test_a_team_stores_no_more_than_its_limit(served: MlflowGateway) -> None:
    content = bytes(LIMIT - 10_000_000)
    with client_of(served, "vision") as http:
        assert http.put(f"{FILES}/a.bin", content=content).status_code == 200
        for sent in (content, iter([content[: 1 << 20]] * 20)):
            refused = http.put(f"{FILES}/b.bin", content=sent)
            assert (refused.status_code, refused.json()["error_code"]) == (403, "PERMISSION_DENIED")
            assert "of its 30 MB for artifacts" in refused.json()["message"]
            assert "team vision uses" in refused.json()["message"]
        assert http.get(f"{FILES}/b.bin").status_code == 404
        assert http.delete(f"{FILES}/a.bin").status_code == 200
        assert http.put(f"{FILES}/b.bin", content=content).status_code == 200
        assert http.delete(f"{FILES}/b.bin").status_code == 200


def test_deleted_runs_are_removed_with_their_files(
    served: MlflowGateway, http: httpx.Client
) -> None:
    with mlflow_client(served) as client:
        experiment = client.create_experiment(f"gc-{time.time_ns()}")
        gone, kept = (client.create_run(experiment).info for _ in range(2))
        for run in (gone, kept):
            client.log_text(run.run_id, "text", "deep/notes.txt")
            client.log_metric(run.run_id, "loss", 1.0)
        client.delete_run(gone.run_id)
        collect(served, "--older-than-days", "1")
        assert client.get_run(gone.run_id).info.lifecycle_stage == "deleted"
        collect(served, "--older-than-days", "0")
        with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
            client.get_run(gone.run_id)
        assert client.get_run(kept.run_id).data.metrics == {"loss": 1.0}
    assert points_of(served, kept.run_id) == 1
    wait_until("the points leave", lambda: points_of(served, gone.run_id) == 0)
    for run, left in ((gone, 0), (kept, 1)):
        path = run.artifact_uri.removeprefix("mlflow-artifacts:/")
        listed = http.get(FILES, params={"path": f"{path}/deep"}).json().get("files", [])
        assert len(listed) == left
    assert http.post("/gangline/gc").status_code == 403


def test_runs_and_models_of_versions_that_a_protected_alias_needs_stay(
    served: MlflowGateway, http: httpx.Client
) -> None:
    """MLflow's own gc looks at no versions: the champion would lose its files."""
    model = f"kept-{time.time_ns()}"
    with mlflow_client(served) as client:
        experiments = [client.create_experiment(f"{model}-{number}") for number in range(3)]
        runs = [client.create_run(one).info for one in (*experiments, experiments[0])]
        client.create_registered_model(model)
        for run in runs:
            client.log_text(run.run_id, "text", "model/weights.txt")
        for run in runs[:3]:
            client.create_model_version(model, f"runs:/{run.run_id}/model", run.run_id)
        protect(served, AliasRow(workspace="nlp", model=model, alias="champion", version=2,
                                 keep=(1, 2)))  # fmt: skip
        client.delete_run(runs[0].run_id)
        client.delete_run(runs[3].run_id)
        client.delete_experiment(experiments[1])
        client.delete_experiment(experiments[2])
        told = collect(served, "--older-than-days", "0")
        assert "team nlp: done; 2 stay, from which protected aliases have versions" in told
        for run in runs[:2]:
            assert client.get_run(run.run_id).info.lifecycle_stage == "deleted"
        for run in runs[2:]:
            with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
                client.get_run(run.run_id)
        client.restore_experiment(experiments[1])
        protect(served)
        collect(served, "--older-than-days", "0")
        with pytest.raises(mlflow.exceptions.MlflowException, match="not found"):
            client.get_run(runs[0].run_id)
    for run, left in zip(runs, (0, 1, 0, 0), strict=True):
        path = run.artifact_uri.removeprefix("mlflow-artifacts:/")
        listed = http.get(FILES, params={"path": f"{path}/model"}).json().get("files", [])
        assert len(listed) == left


def protect(served: MlflowGateway, *rows: AliasRow) -> None:
    """What the registry service asks of the server."""
    answer = httpx.post(
        served.mlflow.url + ALIASES_PATH,
        content=AliasesQuery(aliases=rows).model_dump_json(),
        headers={"authorization": f"Bearer {served.mlflow.token}"},
    )
    assert answer.status_code == 200, answer.text


def points_of(served: MlflowGateway, run_id: str) -> int:
    with served.mlflow.tracker.client() as client:
        rows = client.query(
            "SELECT count() FROM metric_points WHERE run_id = {run:String}",
            parameters={"run": run_id},
        ).result_rows
    return int(rows[0][0])


def collect(served: MlflowGateway, *options: str) -> str:
    environment = {
        **os.environ,
        "GANGLINE_MLFLOW_URL": served.mlflow.url,
        "GANGLINE_SERVICE_TOKEN": served.mlflow.token,
    }
    argv = [sys.executable, "-m", "gangline_mlflow", "gc", "nlp", *options]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_a_large_file_takes_no_memory(served: MlflowGateway, http: httpx.Client) -> None:
    pieces = int(os.environ.get("GANGLINE_TEST_ARTIFACT_BYTES", str(200 << 20))) >> 20
    piece = os.urandom(1 << 20)
    with mlflow_client(served) as client:
        run = client.create_run(client.create_experiment(f"large-{time.time_ns()}")).info
    path = f"{FILES}/{run.artifact_uri.removeprefix('mlflow-artifacts:/')}/file.bin"
    page = {"run_uuid": run.run_id, "path": "file.bin"}
    assert http.put(f"{path}.small", content=piece * 20).status_code == 200
    assert http.get(f"{path}.small").content == piece * 20
    pids = {"gateway": served.pid, "mlflow": served.mlflow.pid}
    before = {name: peak_bytes(pid) for name, pid in pids.items()}
    began = time.monotonic()
    assert http.put(path, content=(piece for _ in range(pieces))).status_code == 200
    between = time.monotonic()
    for source, query in ((path, {}), ("/get-artifact", page)):
        with http.stream("GET", source, params=query) as answer:
            time.sleep(1)  # no server may read ahead
            assert sum(map(len, answer.iter_raw())) == pieces << 20
    print("s up, s down:", round(between - began, 1), round(time.monotonic() - between, 1))
    for name, pid in pids.items():
        grown = peak_bytes(pid) - before[name]
        print(f"{name}: peak {peak_bytes(pid) >> 20} MB, grown {grown >> 20} MB")
        assert grown < 64 << 20, name
    assert http.delete(path).status_code == 200
