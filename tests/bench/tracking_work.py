"""One measurement each, of one server with MLflow's unmodified client."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from tracking_servers import Side, use

POINTS = 100_000
CHART = 320
FOUND = 200
CLIENTS, BATCHES = 8, 8
BATCH = 1000
FILTER = "metrics.m1 > 0.2 and params.p1 != '3'"
ORDER = ["metrics.m2 DESC"]


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


def points(first: int, count: int, names: int = 10) -> list[Any]:
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    steps = range(first, first + count)
    return [Metric(f"m{step % names}", 1 / (1 + step), now_ms + step, step) for step in steps]


class Clients:
    """Processes with a client each. Batches are made before the clock starts."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def log_batch(self, side: Side) -> float:
        """Points a second of all clients in batches of 1,000, until a read has them."""
        for pipe in self._pipes:
            pipe.send((side.url, side.environment, side.new_run()))
        for pipe in self._pipes:
            pipe.recv()
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send("go")
        for pipe in self._pipes:
            pipe.recv()
        side.client.get_run(side.run_id)
        return CLIENTS * BATCHES * BATCH / (time.perf_counter() - began)


@contextmanager
def clients() -> Iterator[Clients]:
    """The processes, ended with the block."""
    spawning = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(CLIENTS):
        ours, theirs = spawning.Pipe()
        pipes.append(ours)
        processes.append(spawning.Process(target=_client, args=(theirs,), daemon=True))
        processes[-1].start()
    try:
        yield Clients(pipes)
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _client(pipe: Connection) -> None:
    at = 0
    while True:  # until it is ended
        url, environment, run_id = pipe.recv()
        use(environment)
        from mlflow import MlflowClient

        client = MlflowClient(url, url)
        batches = [points(at + number * BATCH, BATCH) for number in range(BATCHES)]
        at += BATCHES * BATCH
        client.get_run(run_id)  # connects
        pipe.send("ready")
        pipe.recv()
        for batch in batches:
            client.log_batch(run_id, metrics=batch)
        pipe.send("done")


def fill(side: Side, count: int = POINTS) -> None:
    """A run with one long metric."""
    client, run_id = side.client, side.new_run()
    for first in range(0, count, BATCH):
        client.log_batch(run_id, points(first, BATCH, names=1))
    client.get_run(run_id)


def history(side: Side, count: int = POINTS) -> float:
    """Reading the whole history, in s."""
    client = side.client
    began = time.perf_counter()
    assert len(client.get_metric_history(side.run_id, "m0")) == count
    return time.perf_counter() - began


def chart(side: Side) -> float:
    """The sample that a chart is drawn from, in ms: median of five."""
    return statistics.median(_chart(side) for _ in range(5))


def _chart(side: Side) -> float:
    from mlflow.utils.rest_utils import http_request

    store = side.client._tracking_client.store
    query = {"run_ids": side.run_id, "metric_key": "m0", "max_results": CHART}
    path = "/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval"
    began = time.perf_counter()
    answer = http_request(store.get_host_creds(), path, "GET", params=query)
    took = time.perf_counter() - began
    assert len(answer.json()["metrics"]) == CHART
    return took * 1000


def search(side: Side) -> float:
    """200 runs by a metric and a parameter, in ms."""
    client = side.client
    began = time.perf_counter()
    found = client.search_runs([side.many], FILTER, max_results=FOUND, order_by=ORDER)
    assert len(found) == FOUND
    return (time.perf_counter() - began) * 1000
