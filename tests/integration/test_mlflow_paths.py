"""Hostile paths through the real gateway: none reads or writes outside of a team's folder.

And a body that no server should read.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from support.builders.hostile_paths import absolute, leaving, odd
from support.harnesses.mlflow_gateway import MlflowGateway
from support.harnesses.mlflow_process import peak_bytes

mlflow = pytest.importorskip("mlflow")

SECRET = b"of team vision"
OUTSIDE = b"of the host"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
OURS, THEIRS = "workspaces/nlp", "workspaces/vision"


@pytest.fixture(scope="module")
def served(open_mlflow: MlflowGateway) -> MlflowGateway:
    root = store_of(open_mlflow)
    for place, content in ((THEIRS, SECRET), (OURS, b"own")):
        (root / place / "1").mkdir(parents=True, exist_ok=True)  # of another file's experiment
        (root / place / "1" / "secret.txt").write_bytes(content)
    (root.parent / "secret.txt").write_bytes(OUTSIDE)
    # what an operator's tools, or a job on the same machine, may leave there
    (root / OURS / "1" / "link").symlink_to(root / THEIRS / "1")
    (root / OURS / "1" / "link.txt").symlink_to(root.parent / "secret.txt")
    return open_mlflow


def store_of(served: MlflowGateway) -> Path:
    return served.mlflow.folder / "store" / "mlflow"


class Raw:
    """Sends paths as they are: other clients tidy them first."""

    def __init__(self, served: MlflowGateway) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(served.url).netloc, timeout=60)
        self._headers = {"Authorization": f"Bearer {served.tokens['nlp']}"}

    def __call__(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        # `putrequest` would refuse some of these paths
        self._connection._validate_path = lambda _url: None  # type: ignore[attr-defined]
        headers = dict(self._headers)
        if body is not None and method == "POST":
            headers["Content-Type"] = "application/json"
        self._connection.request(method, f"/mlflow/teams/nlp{path}", body, headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def ask(served: MlflowGateway) -> Iterator[Raw]:
    with closing(Raw(served)) as raw:
        yield raw


def picture(served: MlflowGateway) -> dict[str, bytes]:
    """All files outside of the team's folder."""
    top = store_of(served)
    return {
        str(path.relative_to(top.parent)): path.read_bytes()
        for path in top.parent.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.is_relative_to(top / OURS)
    }


def leaving_paths(served: MlflowGateway) -> list[str]:
    """Paths that name a file outside, if they are believed."""
    root = str(store_of(served))
    paths = [
        *leaving("vision/1/secret.txt"), *leaving("workspaces/vision/1/secret.txt"),
        *absolute(f"{root}/{THEIRS}/1/secret.txt"), *absolute("etc/passwd"),
        f"{THEIRS}/1/secret.txt", f"{OURS}/../vision/1/secret.txt",
        "workspaces/%6elp%2f..%2fvision/1/secret.txt",
    ]  # fmt: skip
    return list(dict.fromkeys(paths))


def other_paths() -> list[str]:
    """Odd names of the team's own folder, and symbolic links that a user left there."""
    links = (f"{OURS}/1/link/secret.txt", f"{OURS}/1/link.txt", "1/link/secret.txt", "1/link.txt")
    return [*odd(), *links, "workspaces", "workspaces/", "~/secret.txt"]


def test_hostile_paths_are_refused(served: MlflowGateway, ask: Raw) -> None:
    before, taken = picture(served), []
    for path in [*leaving_paths(served), *other_paths()]:
        for method, body in (("GET", None), ("PUT", b"taken"), ("DELETE", None)):
            status, answer = ask(method, f"{FILES}/{path}", body)
            assert SECRET not in answer, path
            assert OUTSIDE not in answer, path
            assert status < 500, (status, method, path)
            if status < 300 and method != "DELETE":
                taken.append((method, path))
    assert picture(served) == before
    # These two are names as any other.
    believed = {path for _, path in taken if "..." not in path and "%u002e" not in path}
    assert believed.isdisjoint(leaving_paths(served)), believed


def test_hostile_paths_in_queries_and_bodies_are_refused(served: MlflowGateway, ask: Raw) -> None:
    before = picture(served)
    made = ask("POST", "/api/2.0/mlflow/experiments/create", b'{"name": "paths"}')[1]
    experiment = json.loads(made)["experiment_id"]
    asked = json.dumps({"experiment_id": experiment}).encode()
    run = json.loads(ask("POST", "/api/2.0/mlflow/runs/create", asked)[1])["run"]["info"]["run_id"]
    for path in [*leaving_paths(served), *other_paths()]:
        quoted = path.replace("#", "%23").replace("\\", "%5c")
        for place in (
            f"{FILES}?path={quoted}",
            f"/api/2.0/mlflow/artifacts/list?run_id={run}&path={quoted}",
            f"/get-artifact?run_id={run}&path={quoted}",
        ):
            status, answer = ask("GET", place)
            assert status < 500, (status, place)
            for word in (b"secret.txt", SECRET, OUTSIDE):
                assert status >= 400 or word not in answer, place
        upload = f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path={quoted}"
        # MLflow makes a local file of that name first, which fails for these
        no_name = len(path) > 255 or path.endswith("/")
        assert ask("POST", upload, b"taken")[0] < 500 or no_name, path
        for step in ("create", "complete", "abort"):
            body = {"path": path, "upload_id": "x", "num_parts": 1, "parts": [{"part_number": 1}]}
            status, _ = ask(
                "POST", f"/api/2.0/mlflow-artifacts/mpu/{step}/{path}", json.dumps(body).encode()
            )
            assert 300 <= status <= 501, (step, path, status)
    assert picture(served) == before


def test_an_admin_reaches_the_teams_that_there_are(served: MlflowGateway) -> None:
    headers = {"Authorization": f"Bearer {served.tokens['admin']}"}
    for team, status in (("nlp", 200), ("npl", 404)):
        url = f"{served.tracking_uri(team)}/version"
        assert httpx.get(url, headers=headers, timeout=60).status_code == status


def test_a_parameter_of_any_size_is_refused_with_the_limit(
    served: MlflowGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.tokens["nlp"])
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    client = mlflow.MlflowClient(tracking_uri=served.tracking_uri("nlp"))
    run_id = client.create_run(client.create_experiment("large")).info.run_id
    before = peak_bytes(served.pid)
    size = int(os.environ.get("GANGLINE_TEST_PARAMETER_BYTES", str(40 << 20)))
    limit = "the value of a parameter has at most 6,000 characters"
    with pytest.raises(mlflow.exceptions.MlflowException, match=limit):
        client.log_param(run_id, "prompt", "x" * size)
    assert peak_bytes(served.pid) - before < 20 << 20
    assert client.get_run(run_id).data.params == {}
