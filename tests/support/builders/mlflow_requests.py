"""Requests to MLflow, good ones and odd ones, for a comparison of two servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from support.builders import unicode_names
from support.harnesses.mlflow_replay import API, Request

GOOD: dict[str, Any] = {
    "run_id": "<run>", "key": "loss", "value": 0.5, "timestamp": 1_700_000_000_000, "step": 3,
}  # fmt: skip
VALUES = (
    1, 0.25, -0.0, -7, 1e308, "NaN", "Infinity", "-Infinity", "nan", "1.5", "abc", "", True, None,
    [1], {"a": 1}, 2**70,
)  # fmt: skip
TIMES = (0, 1, -1, 1.5, 2.0, "12", "x", None, True, 2**63 - 1, 2**63)
STEPS = (0, -5, 7, 2**62, 2**63, 1.5, 4.0, "8", "x", None, False)
NAMES = (
    "a", "a b", "a/b", "a//b", "a/./b", "../a", "/a", "a/", ".", "", " ", "ä", "日本", "x" * 250,
    "x" * 251, "a\nb", "a\tb", "a%b", "a:b", "a;b", 5, None, True, [],
)  # fmt: skip
RUNS = ("0" * 32, "", "x", 5, None)


def all_requests() -> Iterator[Request]:
    """In the order in which they must be asked."""
    yield from _experiments()
    yield from _runs()
    yield from _metrics()
    yield from _batches()
    yield from _bodies()
    yield from _unicode()
    yield from _reads()
    yield from _searches()
    yield from _registry()
    yield from _ends()


def _post(path: str, body: Any, *keep: str) -> Request:
    return Request("POST", f"{API}/{path}", body, keep=keep)


def _get(path: str, query: str = "") -> Request:
    return Request("GET", f"{API}/{path}", query=query)


def _experiments() -> Iterator[Request]:
    yield _post("experiments/create", {"name": "first"}, "experiment_id", "exp")
    for body in ({"name": "first"}, {"name": ""}, {}, {"name": 5}, {"name": "a/b c"}):
        yield _post("experiments/create", body)
    yield _post("experiments/set-experiment-tag", {"experiment_id": "1", "key": "k", "value": "v"})
    for query in ("experiment_id=1", "experiment_id=999", "", "experiment_id=x"):
        yield _get("experiments/get", query)
    for name in ("first", "none", ""):
        yield _get("experiments/get-by-name", f"experiment_name={name}")
    for found in ({}, {"max_results": 1}, {"filter": "name = 'first'"}, {"filter": "nonsense"}):
        yield _post("experiments/search", {"max_results": 10, **found})


def _runs() -> Iterator[Request]:
    for number, name in enumerate(("run", "second", "third", "empty")):
        body = {"experiment_id": "1", "user_id": "ada", "start_time": 1000 + number}
        body["run_name"] = name
        yield _post("runs/create", body, "run", "info", "run_id", name)
    yield _post("runs/create", {"experiment_id": "999"})
    for key, value in (("lr", "0.1"), ("lr", "0.1"), ("lr", "0.2"), ("", "x"), ("a\nb", "x")):
        yield _post("runs/log-parameter", {"run_id": "<run>", "key": key, "value": value})
    for value in ("x" * 6000, "x" * 6001, 5, None):
        yield _post("runs/log-parameter", {"run_id": "<run>", "key": "long", "value": value})
    for key, value in (("kind", "a"), ("kind", "b"), ("", "x"), ("mlflow.note", "n")):
        yield _post("runs/set-tag", {"run_id": "<run>", "key": key, "value": value})
    yield _post("runs/delete-tag", {"run_id": "<run>", "key": "mlflow.note"})
    yield _post("runs/delete-tag", {"run_id": "<run>", "key": "none"})


def _metrics() -> Iterator[Request]:
    def one(**changes: Any) -> Request:
        return _post("runs/log-metric", {**GOOD, **changes})

    yield one()
    yield one()  # once more
    for field, tried in (("value", VALUES), ("timestamp", TIMES), ("step", STEPS)):
        for value in tried:
            yield one(key=f"odd-{field}", **{field: value})
    for name in NAMES:
        yield one(key=name)
    for run in RUNS:
        yield one(run_id=run)
    for missing in GOOD:
        yield _post("runs/log-metric", {k: v for k, v in GOOD.items() if k != missing})
    yield one(run_uuid="<run>")
    yield one(run_uuid="<second>")
    yield one(more=1)
    yield one(Value=1)
    yield one(model_id="m-none")
    for number in range(25):  # a curve, with repeated steps and a NaN
        value: Any = "NaN" if number == 11 else (number * 7919) % 13 / 4
        yield one(key="curve", value=value, step=number // 2, timestamp=5000 + number % 7)


def _batches() -> Iterator[Request]:
    point = {name: value for name, value in GOOD.items() if name != "run_id"}

    def batch(metrics: Any, run: str = "<second>", **more: Any) -> Request:
        return _post("runs/log-batch", {"run_id": run, "metrics": metrics, **more})

    yield batch([{**point, "step": step, "value": step / 3} for step in range(40)])
    yield batch([point, point])
    yield batch([])
    yield batch(None)
    yield batch({})
    yield batch([None])
    yield batch([[]])
    yield batch([{**point, "key": f"k{n}"} for n in range(1000)], "<third>")
    yield batch([{**point, "key": f"k{n}"} for n in range(1001)], "<third>")
    for field, tried in (("value", VALUES), ("timestamp", TIMES), ("step", STEPS)):
        for value in tried[::2]:
            yield batch([point, {**point, "key": f"odd-{field}", field: value}])
    for name in NAMES[::2]:
        yield batch([point, {**point, "key": name}])
    for run in ("0" * 32, ""):
        yield batch([point], run)
    param, tag = {"key": "p", "value": "1"}, {"key": "t", "value": "2"}
    yield batch([point], params=[param], tags=[tag])
    yield batch([point], params=[param, {**param, "value": "2"}])
    yield batch([point], params=[], tags=[])
    yield batch([{**point, "more": 1}])
    yield batch([{**point, "model_id": "m-none"}])


def _unicode() -> Iterator[Request]:
    """Names and texts with a character of each category."""
    for name in unicode_names.names().values():
        yield _post("runs/log-metric", {**GOOD, "key": name})
        yield _post("runs/log-parameter", {"run_id": "<run>", "key": name, "value": name})
        yield _post("runs/set-tag", {"run_id": "<run>", "key": name, "value": name})
        yield _post("experiments/create", {"name": name})
        yield _post("runs/search", {"experiment_ids": ["1"], "filter": f"tags.`{name}` = '{name}'"})


def _bodies() -> Iterator[Request]:
    path = f"{API}/runs/log-metric"
    good = json.dumps({**GOOD, "run_id": "0" * 32}).encode()
    for raw in (
        b"",
        b"[]",
        b"{",
        b"null",
        b"5",
        b"\xff",
        good[:-1],
        good + b" ",
        b"[" + good + b"]",
    ):
        yield Request("POST", path, raw=raw)
    for kind in (
        "text/plain",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
    ):
        yield Request("POST", path, {**GOOD, "key": "kind"}, kind=kind)
    yield Request("GET", path)
    yield Request("PUT", path, GOOD)
    yield Request("POST", f"{path}/", GOOD)


def _reads() -> Iterator[Request]:
    for run in ("<run>", "<second>", "<third>", "<empty>", "0" * 32, ""):
        yield _get("runs/get", f"run_id={run}")
    for name in ("loss", "curve", "odd-value", "odd-step", "odd-timestamp", "none", "", "a%20b"):
        yield _get("metrics/get-history", f"run_id=<run>&metric_key={name}")
    for name in ("ä", "日本", "a/b"):
        yield _get("metrics/get-history", f"run_id=<run>&metric_key={quote(name)}")
    for more in (
        "max_results=5",
        "max_results=0",
        "max_results=-1",
        "max_results=x",
        "more=1",
        "max_results=25",
        "max_results=24",
        "page_token=x",
        "page_token=",
        "run_id=x",
    ):
        yield _get("metrics/get-history", f"run_id=<run>&metric_key=curve&{more}")
    yield _get("metrics/get-history", "metric_key=curve")
    yield _get("metrics/get-history", "run_id=<run>")
    path = "metrics/get-history-bulk-interval"
    base = "run_ids=<run>&metric_key=curve"
    for size in (1, 2, 3, 7, 12, 24, 25, 26, 320, 2500, 2501, 0, -1, "x"):
        yield _get(path, f"{base}&max_results={size}")
    for low, high in ((0, 5), (3, 3), (5, 0), (-9, 99), ("x", 5), (50, 60)):
        yield _get(path, f"{base}&start_step={low}&end_step={high}&max_results=4")
    yield _get(path, f"{base}&start_step=1")
    yield _get(path, f"{base}&end_step=1")
    yield _get(path, f"{base}&run_ids=<second>")
    yield _get(path, "run_ids=<second>&run_ids=<run>&metric_key=loss&max_results=9")
    yield _get(path, f"{base}&run_ids=<run>")
    yield _get(path, "metric_key=curve")
    yield _get(path, "run_ids=<run>")
    yield _get(path, "run_ids=" + "0" * 32 + "&metric_key=curve")
    for path in ("metrics/get-history-bulk", "metrics/get-history-bulk-interval"):
        query = "run_id=<second>&metric_key=loss&max_results=7"
        yield Request("GET", f"/ajax-api/2.0/mlflow/{path}", query=query)
        yield Request(
            "GET", f"/ajax-api/2.0/mlflow/{path}", query=query.replace("run_id", "run_ids")
        )


def _searches() -> Iterator[Request]:
    def search(**more: Any) -> Request:
        return _post("runs/search", {"experiment_ids": ["1"], **more})

    for text in (
        "",
        "metrics.loss < 1",
        "metrics.loss > 100",
        "metrics.`odd-value` != 0",
        "params.lr = '0.1'",
        "params.lr LIKE '0%'",
        "params.lr ILIKE '0%'",
        "tags.kind = 'b'",
        "attributes.status = 'RUNNING'",
        "attributes.run_name = 'run'",
        "metrics.loss >< 1",
        "metrics.loss = 'a'",
        "nonsense",
        "a.b = 1",
        "metrics.loss < 1 AND params.lr = '0.1'",
        "metrics.loss < 1 OR params.lr = '0.1'",
        "attributes.start_time > 0",
        "metrics.curve IS NULL",
        "metrics.curve IS NOT NULL",
        "attributes.run_id IN ('x', 'y')",
        "datasets.name = 'd'",
    ):
        yield search(filter=text)
    for order in (
        ["metrics.loss"],
        ["metrics.loss DESC"],
        ["metrics.`odd-value` ASC"],
        ["params.lr DESC"],
        ["tags.kind"],
        ["attributes.start_time ASC"],
        ["run_name"],
        ["nonsense x"],
        ["metrics.loss", "run_name"],
    ):
        yield search(order_by=order)
    for size in (1, 2, 50_000, 50_001, 0, -1, "x", None):
        yield search(max_results=size)
    for view in ("ACTIVE_ONLY", "DELETED_ONLY", "ALL", "x", 1):
        yield search(run_view_type=view)
    yield search(page_token="x")
    for experiments in ([], ["999"], ["x"], [1], None):
        yield search(experiment_ids=experiments)


def _registry() -> Iterator[Request]:
    for body in ({"name": "sft"}, {"name": "sft"}, {"name": ""}, {"name": "a/b"}, {}):
        yield _post("registered-models/create", body)
    for body in (
        {"name": "sft", "source": "runs:/<run>/model", "run_id": "<run>"},
        {"name": "none", "source": "runs:/<run>/model"},
        {"name": "sft"},
    ):
        yield _post("model-versions/create", body)
    yield _post("registered-models/alias", {"name": "sft", "alias": "best", "version": "1"})
    for alias in ("best", "none"):
        yield _get("registered-models/alias", f"name=sft&alias={alias}")
    yield _get("model-versions/search", "filter=" + quote("name='sft'"))
    yield Request("DELETE", f"{API}/registered-models/alias", {"name": "sft", "alias": "best"})
    yield _get("registered-models/get", "name=sft")


def _ends() -> Iterator[Request]:
    for status in ("FINISHED", "x", 3):
        yield _post("runs/update", {"run_id": "<run>", "status": status, "end_time": 2000})
    yield _post("runs/log-metric", {**GOOD, "key": "late"})
    yield _post("runs/delete", {"run_id": "<run>"})
    yield _post("runs/log-metric", GOOD)
    yield _post("runs/log-batch", {"run_id": "<run>", "metrics": []})
    yield _get("metrics/get-history", "run_id=<run>&metric_key=curve")
    yield _post("runs/restore", {"run_id": "<run>"})
    yield _post("runs/log-metric", {**GOOD, "key": "later"})
    yield _get("runs/get", "run_id=<run>")
    yield _post("experiments/delete", {"experiment_id": "1"})
    yield _post("runs/log-metric", {**GOOD, "key": "latest"})
    yield _post("experiments/restore", {"experiment_id": "1"})
    yield _get("runs/get", "run_id=<run>")
