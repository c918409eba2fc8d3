"""MLflow's unmodified client against our server and the genuine one, in turns, in one run.

Both run beside each other on SQLite; ours acknowledges by Kafka, with the tracker and the broker on
the same machine. Run it alone: python tests/bench/run.py --only mlflow --quick.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from harness import Context, Result, scratch

from gangline.local.kafka import EmbeddedKafka
from support.harnesses.genuine_mlflow import OFF, genuine_server
from support.harnesses.mlflow_process import MlflowProcess, mlflow_server

TEAM = "nlp"
POINTS = 100_000
RUNS, FOUND = 1_000, 200


class Side:
    """One server, with a run to log to."""

    def __init__(self, url: str, token: str) -> None:
        self._own = {"MLFLOW_TRACKING_TOKEN": token, "MLFLOW_WORKSPACE": TEAM}
        os.environ.update(self._own)
        from mlflow import MlflowClient

        self._client = MlflowClient(url, url)
        self.experiment = self._client.create_experiment("bench")
        self.run_id = self._client.create_run(self.experiment).info.run_id
        self.step = 0

    @property
    def client(self) -> Any:
        os.environ.update(self._own)
        return self._client


def run(context: Context) -> list[Result]:
    """All figures, of both servers."""
    rounds = context.repeats(5, 2)
    os.environ.update(OFF)
    with scratch() as folder, both(folder) as (genuine, ours, server):
        sides = {"genuine": genuine, "ours": ours}
        found = []
        for name, measure, unit in (
            ("log_metric_p50_ms", log_metric, "ms"),
            ("log_batch_points_per_s", log_batch, "points/s"),
            ("history_100k_s", history, "s"),
            ("chart_320_ms", chart, "ms"),
            ("search_200_of_1000_ms", search, "ms"),
        ):
            if measure is history:
                for side in sides.values():
                    fill(side)
            if measure is search:
                for side in sides.values():
                    many_runs(side)
            found += compare(context, f"mlflow_{name}", measure, unit, sides, rounds)
        memory = psutil.Process(server.pid).memory_full_info().pss / 1e6
        found.append(context.result("mlflow_memory_mb", memory, "MB (PSS)"))
        return found


@contextmanager
def both(folder: Path) -> Iterator[tuple[Side, Side, MlflowProcess]]:
    with (
        EmbeddedKafka(folder / "kafka") as kafka,
        genuine_server(folder / "genuine", TEAM) as url,
        mlflow_server(kafka.bootstrap, folder / "ours") as server,
    ):
        yield Side(url, "none"), Side(server.url, server.token), server


def compare(
    context: Context,
    name: str,
    measure: Callable[[Side], float],
    unit: str,
    sides: dict[str, Side],
    rounds: int,
) -> list[Result]:
    """Each side's median, and the ratio of the medians."""
    values: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 else reversed(sides):
            values[side].append(measure(sides[side]))
    context.say(f"{name}: {values}")
    ours, genuine = (statistics.median(values[side]) for side in ("ours", "genuine"))
    return [
        context.median(f"{name}_genuine", values["genuine"], unit),
        context.median(name, values["ours"], unit),
        context.result(f"{name}_ratio", ours / genuine, "of genuine"),
    ]


def log_metric(side: Side) -> float:
    """P50 of one log_metric, in ms."""
    took = []
    client = side.client
    for _ in range(200):
        side.step += 1
        began = time.perf_counter()
        client.log_metric(side.run_id, "loss", 0.5, step=side.step)
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def log_batch(side: Side) -> float:
    """Points a second in batches of 1,000, until a read has them."""
    client = side.client
    began = time.perf_counter()
    for _ in range(10):
        client.log_batch(side.run_id, points(side, 1000))
    client.get_run(side.run_id)
    return 10_000 / (time.perf_counter() - began)


def points(side: Side, count: int, names: int = 10) -> list[Any]:
    from mlflow.entities import Metric

    side.step += count
    now_ms = int(time.time() * 1000)
    steps = range(side.step - count, side.step)
    return [Metric(f"m{step % names}", 1 / (1 + step), now_ms + step, step) for step in steps]


def fill(side: Side) -> None:
    side.run_id = side.client.create_run(side.experiment).info.run_id
    for _ in range(POINTS // 1000):
        side.client.log_batch(side.run_id, points(side, 1000, names=1))


def history(side: Side) -> float:
    """Reading the whole history, in s."""
    client = side.client
    began = time.perf_counter()
    assert len(client.get_metric_history(side.run_id, "m0")) == POINTS
    return time.perf_counter() - began


def chart(side: Side) -> float:
    """The sample that a chart is drawn from, in ms."""
    from mlflow.utils.rest_utils import http_request

    store = side.client._tracking_client.store
    query = {"run_ids": side.run_id, "metric_key": "m0", "max_results": 320}
    path = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"
    began = time.perf_counter()
    answer = http_request(store.get_host_creds(), path, "GET", params=query)
    took = time.perf_counter() - began
    assert len(answer.json()["metrics"]) == 320
    return took * 1000


def many_runs(side: Side) -> None:
    from mlflow.entities import Metric, Param

    for number in range(RUNS):
        run_id = side.client.create_run(side.experiment).info.run_id
        metrics = [Metric(f"m{k}", (number * 7919 + k) % 1000 / 1000, 1, 1) for k in range(10)]
        params = [Param(f"p{k}", str(number % 10)) for k in range(10)]
        side.client.log_batch(run_id, metrics, params)


def search(side: Side) -> float:
    """200 runs by a metric and a parameter, in ms."""
    client = side.client
    began = time.perf_counter()
    found = client.search_runs(
        [side.experiment],
        "metrics.m1 > 0.2 and params.p1 != '3'",
        max_results=FOUND,
        order_by=["metrics.m2 DESC"],
    )
    assert len(found) == FOUND
    return (time.perf_counter() - began) * 1000
