"""Requests that the fast lane takes; anything odd is left to MLflow."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from gangline_mlflow import plain
from gangline_mlflow.plain import HistoryQuery, Logged, Odd, RunsQuery, SampleQuery
from gangline_schemas.events.metrics import LARGEST

POINT = {"key": "loss", "value": 0.5, "timestamp": 1000, "step": 3}
ONE = {"run_id": "r1", "run_uuid": "r1", **POINT}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def test_one_metric() -> None:
    assert plain.log_metric(body(ONE)) == Logged("r1", ("loss",), (3,), (1000,), (0.5,))
    (value,) = plain.log_metric(body({**ONE, "value": 2})).values
    assert (value, type(value)) == (2.0, float)
    without_step = {name: value for name, value in ONE.items() if name != "step"}
    assert plain.log_metric(body(without_step)).steps == (0,)


@pytest.mark.parametrize(
    ("text", "value"), [("Infinity", LARGEST), ("-Infinity", -LARGEST), ("NaN", None)]
)
def test_values_that_are_not_finite_are_spelled_as_protobuf_does(
    text: str, value: float | None
) -> None:
    assert plain.log_metric(body({**ONE, "value": text})).values == (value,)
    batch = {"run_id": "r1", "metrics": [POINT, {**POINT, "value": text}]}
    assert plain.log_batch(body(batch)).values == (0.5, value)


@pytest.mark.parametrize(
    "change",
    [
        {"value": "0.5"}, {"value": 10**400}, {"value": True}, {"value": None},
        {"timestamp": 1.5}, {"timestamp": 1000.0}, {"timestamp": -1}, {"timestamp": 2**63},
        {"timestamp": "1000"}, {"step": True}, {"step": 2**63}, {"step": "3"}, {"key": ""},
        {"key": 3}, {"run_id": ""}, {"run_uuid": "r2"}, {"model_id": "m-1"}, {"Value": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_an_odd_metric_is_left_to_mlflow(change: dict[str, Any]) -> None:
    with pytest.raises(Odd):
        plain.log_metric(body({**ONE, **change}))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"value": NaN}', b"\xff"])
def test_a_body_that_is_no_object_is_left_to_mlflow(text: bytes) -> None:
    for read in (plain.log_metric, plain.log_batch):
        with pytest.raises(Odd):
            read(text)


def test_a_batch_of_metrics() -> None:
    batch = {"run_id": "r1", "metrics": [POINT, {**POINT, "step": 4}], "params": [], "tags": []}
    logged = plain.log_batch(body(batch))
    assert logged == Logged("r1", ("loss",) * 2, (3, 4), (1000,) * 2, (0.5,) * 2)


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": []}, {"metrics": None}, {"metrics": [POINT] * 1001}, {"metrics": [None]},
        {"metrics": [{**POINT, "dataset_name": "d"}]}, {"params": [{"key": "a", "value": "b"}]},
        {"tags": [{"key": "a", "value": "b"}]}, {"run_id": None}, {"more": 1},
    ],
    ids=lambda change: str(change)[:40],
)  # fmt: skip
def test_an_odd_batch_is_left_to_mlflow(change: dict[str, Any]) -> None:
    with pytest.raises(Odd):
        plain.log_batch(body({"run_id": "r1", "metrics": [POINT], **change}))


def test_a_search_of_runs() -> None:
    asked = {"experiment_ids": ["1", "22"], "filter": "a", "order_by": ["b"], "max_results": 7}
    assert plain.search_runs(body(asked)) == RunsQuery([1, 22], "a", "ACTIVE_ONLY", 7, ["b"], None)
    assert plain.search_runs(b"{}") == RunsQuery([], "", "ACTIVE_ONLY", 1000, [], None)


@pytest.mark.parametrize(
    "change",
    [
        {"experiment_ids": [1]}, {"experiment_ids": ["x"]}, {"experiment_ids": None}, {"filter": 5},
        {"max_results": 0}, {"max_results": 50_001}, {"max_results": "5"}, {"max_results": True},
        {"run_view_type": "x"}, {"run_view_type": 1}, {"order_by": [1]}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_an_odd_search_is_left_to_mlflow(change: dict[str, Any]) -> None:
    with pytest.raises(Odd):
        plain.search_runs(body({"experiment_ids": ["1"], **change}))


def query(*pairs: tuple[str, object]) -> bytes:
    return urlencode(pairs).encode()


def test_a_page_of_a_history() -> None:
    paging = (("max_results", 10), ("page_token", ""))
    asked = query(("run_id", "r1"), ("metric_key", "a/b c"), *paging)
    assert plain.history(asked) == HistoryQuery("r1", "a/b c", 10, None)


def test_a_sample_of_histories() -> None:
    runs = (("run_ids", "r2"), ("run_ids", "r1"), ("metric_key", "loss"))
    assert plain.sample(query(*runs)) == SampleQuery(["r2", "r1"], "loss", 2500, None)
    bounded = query(*runs, ("start_step", -5), ("end_step", 7), ("max_results", 320))
    assert plain.sample(bounded) == SampleQuery(["r2", "r1"], "loss", 320, (-5, 7))


@pytest.mark.parametrize(
    "asked",
    [
        b"", b"run_id=r1", b"metric_key=a", b"run_id=r1&run_id=r2&metric_key=a",
        b"run_id=r1&metric_key=a&max_results=0", b"run_id=r1&metric_key=a&max_results=1e3",
        b"run_id=r1&metric_key=a&more=1", b"run_id=r1&run_uuid=r2&metric_key=a", b"run_id=\xff",
        b"run_id=r1&metric_key=%ff",
    ],
)  # fmt: skip
def test_an_odd_question_for_a_history_is_left_to_mlflow(asked: bytes) -> None:
    with pytest.raises(Odd):
        plain.history(asked)


@pytest.mark.parametrize(
    "asked",
    [
        b"metric_key=a", b"run_ids=r&run_ids=r&metric_key=a", b"run_ids=r&metric_key=",
        b"run_ids=r&metric_key=a&start_step=1",
        b"run_ids=r&metric_key=a&start_step=2&end_step=1", b"run_ids=r&metric_key=a&max_results=0",
        b"run_ids=r&metric_key=a&max_results=2501", b"run_ids=r&metric_key",
        b"&".join(b"run_ids=%d" % n for n in range(101)) + b"&metric_key=a",
    ],
    ids=lambda asked: asked.decode()[:50],
)  # fmt: skip
def test_an_odd_question_for_samples_is_left_to_mlflow(asked: bytes) -> None:
    with pytest.raises(Odd):
        plain.sample(asked)
