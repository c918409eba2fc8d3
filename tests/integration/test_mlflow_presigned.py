"""Files that MLflow's client sends to S3 and reads from there itself, by presigned URLs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gangline.local.kafka import EmbeddedKafka
from gangline.local.s3proxy import S3Proxy
from support.harnesses.mlflow_gateway import MlflowGateway, mlflow_gateway

mlflow = pytest.importorskip("mlflow")

API = "/api/2.0/mlflow-artifacts"
PART = 5 << 20
LIMIT = 20_000_000


@pytest.fixture(scope="module")
def served(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MlflowGateway]:
    folder = tmp_path_factory.mktemp("presigned")
    with S3Proxy(folder / "s3") as proxy:
        own = {
            "GANGLINE_STORE_URL": proxy.url, **proxy.environment,
            "GANGLINE_MLFLOW_PRESIGNED": "true",
            "GANGLINE_MLFLOW_ARTIFACT_BYTES_OF": json.dumps({"vision": LIMIT}),
        }  # fmt: skip
        with mlflow_gateway(kafka.bootstrap, folder / "server", own) as running:
            yield running


def client_of(served: MlflowGateway, team: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {served.tokens[team]}"}
    return httpx.Client(base_url=served.tracking_uri(team), headers=headers, timeout=120)


def begun(http: httpx.Client, folder: str, parts: int) -> Any:
    asked = {"path": "/some/where/model.bin", "num_parts": parts}
    answer = http.post(f"{API}/mpu/create/{folder}", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def sent(upload: Any, part: bytes) -> list[dict[str, Any]]:
    """Send the same bytes as each part."""
    found = []
    for credential in upload["credentials"]:
        answer = httpx.put(credential["url"], content=part, timeout=60)
        assert answer.status_code == 200, answer.text
        etag = answer.headers["etag"]
        found.append({"part_number": credential["part_number"], "etag": etag})
    return found


def ended(http: httpx.Client, how: str, folder: str, upload: Any, parts: Any) -> httpx.Response:
    body = {"path": "model.bin", "upload_id": upload["upload_id"], "parts": parts}
    return http.post(f"{API}/mpu/{how}/{folder}", json=body)


def test_the_client_s_large_files_go_in_parts(
    served: MlflowGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.tokens["nlp"])
    monkeypatch.setenv("MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE", str(PART))
    monkeypatch.setenv("MLFLOW_MULTIPART_UPLOAD_CHUNK_SIZE", str(PART))
    monkeypatch.setenv("MLFLOW_MULTIPART_DOWNLOAD_CHUNK_SIZE", str(1 << 20))
    mlflow.set_tracking_uri(served.tracking_uri("nlp"))
    client, source = mlflow.MlflowClient(), tmp_path / "model größe.bin"
    source.write_bytes(os.urandom(2 * PART + 1234))
    run_id = client.create_run(client.create_experiment("parts")).info.run_id
    client.log_artifact(run_id, str(source), "models")
    (listed,) = client.list_artifacts(run_id, "models")
    assert (listed.path, listed.file_size) == (f"models/{source.name}", 2 * PART + 1234)
    (tmp_path / "got").mkdir()
    there = Path(client.download_artifacts(run_id, listed.path, str(tmp_path / "got")))
    assert there.read_bytes() == source.read_bytes()


def test_an_upload_above_the_limit_is_given_up(served: MlflowGateway) -> None:
    with client_of(served, "vision") as http:
        upload = begun(http, "1/run", 4)
        parts = sent(upload, bytes(PART))
        refused = ended(http, "complete", "1/run", upload, parts)
        assert refused.status_code == 403, refused.text
        assert "of its 20 MB for artifacts" in refused.json()["message"]
        assert ended(http, "complete", "1/run", upload, parts).status_code == 404
        assert http.get(f"{API}/artifacts/1/run/model.bin").status_code == 404
        upload = begun(http, "1/run", 3)
        parts = sent(upload, bytes(PART))
        assert ended(http, "complete", "1/run", upload, parts).status_code == 200
        found = http.get(f"{API}/presigned/1/run/model.bin").json()
        assert found["file_size"] == 3 * PART
        part = httpx.get(found["url"], headers={"Range": "bytes=0-9"})
        assert (part.status_code, part.content) == (206, bytes(10))
        assert "attachment" in part.headers["content-disposition"]
        assert http.delete(f"{API}/artifacts/1/run").status_code == 200


def test_parts_of_uploads_that_never_end_count_for_the_limit(served: MlflowGateway) -> None:
    with client_of(served, "vision") as http:
        uploads = [begun(http, f"1/{number}", 2) for number in range(2)]
        for upload in uploads:
            sent(upload, bytes(PART))
        asked = {"path": "more.bin", "num_parts": 1}
        refused = http.post(f"{API}/mpu/create/1/run", json=asked)
        assert refused.status_code == 403, refused.text
        for number, upload in enumerate(uploads):
            assert ended(http, "abort", f"1/{number}", upload, []).status_code == 200
        upload = begun(http, "1/run", 1)
        assert ended(http, "abort", "1/run", upload, []).status_code == 200


def test_an_upload_can_be_aborted_and_has_bounds(served: MlflowGateway) -> None:
    with client_of(served, "nlp") as http:
        upload = begun(http, "1/run", 1)
        for _ in range(2):
            assert ended(http, "abort", "1/run", upload, []).status_code == 200
        for parts in (0, 10_001):
            asked = {"path": "x", "num_parts": parts}
            assert http.post(f"{API}/mpu/create/1/run", json=asked).status_code == 400
        assert http.get(f"{API}/presigned/1/none").status_code == 404


def test_another_team_s_uploads_and_files_are_out_of_reach(served: MlflowGateway) -> None:
    place = "workspaces/nlp/1/run"
    with client_of(served, "nlp") as nlp, client_of(served, "vision") as vision:
        upload = begun(nlp, place, 1)
        parts = sent(upload, b"of nlp")
        for how in ("complete", "abort"):
            assert ended(vision, how, place, upload, parts).status_code == 400
            assert ended(vision, how, "1/run", upload, parts).status_code == 404
        assert (
            vision.post(f"{API}/mpu/create/{place}", json={"path": "x", "num_parts": 1}).status_code
            == 400
        )
        assert ended(nlp, "complete", place, upload, parts).status_code == 200
        assert vision.get(f"{API}/presigned/{place}/model.bin").status_code == 400
        url = nlp.get(f"{API}/presigned/{place}/model.bin").json()["url"]
        assert httpx.get(url).content == b"of nlp"
        assert httpx.get(url.replace("/nlp/", "/vision/")).status_code == 403
        assert httpx.put(url, content=b"taken").status_code == 403
