"""Two teams through every route of MLflow's: team vision knows all ids of team nlp.

The genuine application gives the list of routes. Each request names nlp's ids in its path, query
and body, under every name that MLflow's messages have. After each one, all rows and files of nlp
are as before, and the answer shows none of its content. Team nlp itself asks the same reads, and
sees its content, so the requests are such that a leak would show.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.harnesses.genuine_mlflow import genuine_routes
from support.harnesses.mlflow_gateway import MlflowGateway

pytest.importorskip("mlflow")

MARK = f"seekret{uuid.uuid4().hex[:8]}"
"""Stands in all content of team nlp."""
ATTACHMENT = str(uuid.uuid4())
P2, P3 = "/api/2.0/mlflow", "/api/3.0/mlflow"
FILES = "/api/2.0/mlflow-artifacts/artifacts"
NAMES_ONLY = {"model_versions"}
"""A version of vision's may name a run of nlp's: reading it finds nothing."""


def client_of(served: MlflowGateway, team: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {served.tokens[team]}"}
    return httpx.Client(base_url=served.tracking_uri(team), headers=headers, timeout=120)


@dataclass(frozen=True)
class Owned:
    """Ids of all that team nlp has."""

    ids: Mapping[str, str]

    @property
    def long_ids(self) -> set[str]:
        """Those that stand in nothing else by chance."""
        return {value for name, value in self.ids.items() if name != "experiment"}

    @property
    def words(self) -> set[str]:
        """Content with one of these is nlp's."""
        return {MARK, *self.long_ids}


def made(http: httpx.Client, method: str, path: str, body: object) -> Any:
    answer = http.request(method, path, json=body)
    assert answer.status_code == 200, (path, answer.text[:500])
    return answer.json()


def everything(http: httpx.Client) -> Owned:
    """Make one of each thing that MLflow knows."""
    ids = {
        "experiment": made(http, "POST", f"{P2}/experiments/create", {"name": MARK})[
            "experiment_id"
        ]
    }
    asked = {"experiment_id": ids["experiment"], "run_name": MARK, "start_time": 1}
    run = made(http, "POST", f"{P2}/runs/create", asked)["run"]["info"]
    ids |= {"run": run["run_id"], "path": run["artifact_uri"].partition(":/")[2].lstrip("/")}
    tags = [{"key": "t", "value": MARK}]
    made(http, "POST", f"{P2}/runs/log-batch", {
        "run_id": ids["run"], "params": [{"key": "p", "value": MARK}], "tags": tags,
        "metrics": [{"key": MARK, "value": 7.25, "timestamp": 1, "step": 1}],
    })  # fmt: skip
    assert http.put(f"{FILES}/{ids['path']}/{MARK}.txt", content=MARK).status_code == 200
    made(http, "POST", f"{P2}/registered-models/create", {"name": MARK, "tags": tags})
    version = {"name": MARK, "source": run["artifact_uri"], "run_id": ids["run"], "tags": tags}
    made(http, "POST", f"{P2}/model-versions/create", version)
    alias = {"name": MARK, "alias": "champion", "version": "1"}
    made(http, "POST", f"{P2}/registered-models/alias", alias)
    model = {
        "experiment_id": ids["experiment"],
        "name": MARK,
        "source_run_id": ids["run"],
        "tags": tags,
    }
    ids["model"] = made(http, "POST", f"{P2}/logged-models", model)["model"]["info"]["model_id"]
    dataset = {"dataset": {"name": MARK, "digest": "d1", "source_type": "local", "source": MARK}}
    made(http, "POST", f"{P2}/runs/log-inputs", {"run_id": ids["run"], "datasets": [dataset]})
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": ids["experiment"]}}
    info = {
        "trace_id": f"tr-{uuid.uuid4().hex}", "request_time": "2026-01-01T00:00:00Z", "state": "OK",
        "request_preview": MARK, "trace_location": place, "tags": {"t": MARK},
    }  # fmt: skip
    made_trace = made(http, "POST", f"{P3}/traces", {"trace": {"trace_info": info}})
    ids["trace"] = made_trace["trace"]["trace_info"]["trace_id"]
    data = {"name": MARK, "experiment_ids": [ids["experiment"]]}
    ids["dataset"] = made(http, "POST", f"{P3}/datasets/create", data)["dataset"]["dataset_id"]
    return Owned(ids)


def sink(ids: Mapping[str, str]) -> dict[str, Any]:
    """A body and query with all ids, under all names that MLflow's messages have."""
    experiment, run, trace = ids["experiment"], ids["run"], ids["trace"]
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    return {
        "experiment_id": experiment, "experiment_ids": [experiment], "experiment_name": MARK,
        "run_id": run, "run_uuid": run, "run_ids": [run], "name": MARK, "version": "1",
        "new_name": "taken", "alias": "champion", "model_id": ids["model"],
        "models": [{"model_id": ids["model"], "step": 0}], "trace_id": trace, "request_id": trace,
        "trace_ids": [trace], "request_ids": [trace], "dataset_id": ids["dataset"],
        "dataset_ids": [ids["dataset"]], "locations": [place], "metric_key": MARK, "key": "t",
        "value": "taken", "timestamp": 1, "step": 1, "metrics": [], "params": [],
        "description": "taken",
        "path": f"{MARK}.txt", "artifact_file_path": f"{MARK}.txt", "max_results": 100,
        "max_traces": 9, "max_timestamp_millis": 2**53, "status": "FAILED", "stage": "Production",
        "tags": [{"key": "t", "value": "taken"}], "datasets": [], "archive_existing_versions": True,
        "num_parts": 1, "upload_id": "x", "parts": [{"part_number": 1, "etag": "x"}],
        "source": f"runs:/{run}/model", "view_type": "ALL", "start_time": 1, "user_id": MARK,
    }  # fmt: skip


def filled(path: str, ids: Mapping[str, str]) -> str:
    """A route's path with nlp's ids in its places."""
    values = {
        "artifact_path": f"{ids['path']}/{MARK}.txt", "model_id": ids["model"], "tag_key": "t",
        "request_id": ids["trace"], "trace_id": ids["trace"], "dataset_id": ids["dataset"],
        "key": "t", "workspace_name": "nlp", "run_id": ids["run"],
    }  # fmt: skip
    name = re.compile(r"<(?:\w+:)?(\w+)>|\{(\w+)(?::\w+)?\}")
    return name.sub(lambda found: values.get(found[1] or found[2], MARK), path)


def graphql(ids: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The UI's queries."""
    run, experiment = ids["run"], ids["experiment"]
    for kind, name, wanted, shown in (
        ("query", "GetRun", {"runId": run}, "run { info { runName } data { tags { value } } }"),
        ("query", "GetExperiment", {"experimentId": experiment}, "experiment { name }"),
        ("mutation", "SearchRuns", {"experimentIds": [experiment]}, "runs { info { runName } }"),
        ("query", "GetMetricHistoryBulkInterval", {"runIds": [run], "metricKey": MARK},
         "metrics { key value }"),
        ("query", "ListArtifacts", {"runId": run}, "files { path }"),
        ("query", "SearchModelVersions", {}, "modelVersions { name }"),
    ):  # fmt: skip
        text = f"{kind} A($d: Mlflow{name}Input) {{ mlflow{name}(input: $d) {{ {shown} }} }}"
        yield {"query": text, "variables": {"d": wanted}}


def asked(ids: Mapping[str, str], folder: Path, *, both: bool) -> Iterator[tuple[str, str, Any]]:
    """Requests as method, path with query, and body."""
    body = sink(ids)
    query = httpx.QueryParams({k: v for k, v in body.items() if not isinstance(v, dict)})
    known = genuine_routes(folder)
    for method, path in known:
        twin = (method, path.replace("/ajax-api/", "/api/")) if "/ajax-api/" in path else None
        if method not in {"HEAD", "OPTIONS"} and (both or twin not in known):
            sent = None if method == "GET" else body
            if path.endswith("/create"):
                sent = {**body, "name": "own-too"}  # vision may have one of the same name
            yield method, f"{filled(path, ids)}?{query}", sent
    for question in graphql(ids):
        yield "POST", "/graphql", question
    for method in ("GET", "PUT", "DELETE"):
        for place in (f"{FILES}/{ids['path']}/{MARK}.txt", f"{FILES}/{ids['path']}"):
            yield method, place, None
    yield "GET", f"{FILES}?path={ids['path']}", None


class Picture:
    """Rows and files of team nlp."""

    def __init__(self, served: MlflowGateway, owned: Owned) -> None:
        self._served, self._owned = served, owned
        self.rows = self._rows()
        self.files = self._files()

    def check(self, what: str) -> None:
        """Fail unless all is as it was, and nothing was added to it."""
        rows = self._rows()
        lost, new = self.rows - rows, rows - self.rows
        assert not lost, (what, lost)
        for table, row in new:
            ours = any(word in row for word in self._owned.long_ids)
            assert table in NAMES_ONLY or not ours, (what, table, row)
        self.rows = rows
        assert self._files() == self.files, what

    def _rows(self) -> set[tuple[str, str]]:
        database = self._served.mlflow.folder / "mlflow.db"
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {
                (table, repr(row))
                for (table,) in tables.fetchall()
                for row in connection.execute(f'SELECT * FROM "{table}"')
                if any(word in repr(row) for word in self._owned.words)
            }

    def _files(self) -> dict[str, bytes]:
        top = self._served.mlflow.folder / "store" / "mlflow" / "workspaces" / "nlp"
        return {str(path): path.read_bytes() for path in top.rglob("*") if path.is_file()}


@pytest.mark.parametrize("both", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_team_reads_and_changes_nothing_of_another(
    open_mlflow: MlflowGateway, tmp_path: Path, *, both: bool
) -> None:
    served = open_mlflow
    with client_of(served, "nlp") as nlp, client_of(served, "vision") as vision:
        owned = everything(nlp)
        own = made(vision, "POST", f"{P2}/experiments/create", {"name": "own"})["experiment_id"]
        picture, seen, tried = Picture(served, owned), 0, 0
        for method, path, body in asked(owned.ids, tmp_path, both=both):
            answer = vision.request(method, path, json=body)
            what = f"{method} {path[:90]}: {answer.status_code} {answer.text[:300]}"
            if answer.is_success:
                shown = re.sub(r'"(source|run_id|user_id)": *"[^"]*"', "", answer.text)
                assert MARK not in shown, what  # ids may be named: vision has asked for them
                assert "7.25" not in shown, what
            picture.check(what)
            tried += 1
            if method == "GET":
                seen += MARK in nlp.request(method, path, json=body).text
        assert tried > (450 if both else 250)
        assert seen >= (40 if both else 20)
        history = nlp.get(
            f"{P2}/metrics/get-history", params={"run_id": owned.ids["run"], "metric_key": MARK}
        ).json()["metrics"]
        assert [point["value"] for point in history] == [7.25]
        runs = made(nlp, "POST", f"{P2}/runs/search", {"experiment_ids": [owned.ids["experiment"]]})
        assert [run["info"]["run_id"] for run in runs["runs"]] == [owned.ids["run"]]
        assert made(vision, "GET", f"{P2}/experiments/get?experiment_id={own}", None)
        attached = f"{owned.ids['path']}/attachments/{ATTACHMENT}"
        assert nlp.put(f"{FILES}/{attached}", content=MARK).status_code == 200
        place = f"mlflow-artifacts:/{owned.ids['path']}"
        assert MARK in attachment(nlp, owned.ids["experiment"], place)
        folder = f"{served.mlflow.folder}/store/mlflow/{owned.ids['path']}"
        for location in (
            place, place.replace("mlflow", "gangline"), f"gangline-artifacts:///{owned.ids['path']}",
            folder, f"file://{folder}", f"runs:/{owned.ids['run']}/", "s3://bucket/x",
            f"mlflow-artifacts:/workspaces/vision/../{owned.ids['path']}", "http://127.0.0.1:1/x",
        ):  # fmt: skip
            assert MARK not in attachment(vision, own, location), location


def attachment(http: httpx.Client, experiment: str, location: str) -> str:
    """The answer for a file of a trace whose tag says where its files are."""
    place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": experiment}}
    info = {
        "trace_id": f"tr-{uuid.uuid4().hex}", "request_time": "2026-01-01T00:00:00Z", "state": "OK",
        "trace_location": place,
    }  # fmt: skip
    trace = made(http, "POST", f"{P3}/traces", {"trace": {"trace_info": info}})
    trace_id = trace["trace"]["trace_info"]["trace_id"]
    tag = {"key": "mlflow.artifactLocation", "value": location}
    assert http.patch(f"{P3}/traces/{trace_id}/tags", json=tag).status_code == 200
    asked = {"request_id": trace_id, "path": ATTACHMENT}
    return http.get("/ajax-api/2.0/mlflow/get-trace-artifact", params=asked).text
