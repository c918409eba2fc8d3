"""A minute of ingest while readers ask: Kafka -> the tracker's process -> ClickHouse.

The points wait in Kafka, so that nothing else uses the two cores. Two readers then ask as the
gateway does, twice a second each: the curves of 50 runs, and the latest values of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psutil
from bench_ingest import METRICS, produce
from clickhouse_connect.driver.client import Client
from harness import Context, Result, scratch

from gangline.local.kafka import EmbeddedKafka
from gangline_gateway import curve_sql
from support.harnesses.tracker_process import TrackerProcess, wait_until

WINDOW_S = 60.0
POINTS_PER_S = 1_250_000
"""More than are taken: the window must end before the backlog does."""
ASK_EVERY_S = 0.5
RUNS = 50


def run(context: Context) -> list[Result]:
    """Points a second, and how long readers waited meanwhile."""
    window_s = WINDOW_S / 6 if context.quick else WINDOW_S
    with scratch() as folder, EmbeddedKafka(folder / "kafka") as kafka:
        tracker = TrackerProcess(kafka.bootstrap, folder)
        try:
            points = produce(tracker.bus, int(window_s * POINTS_PER_S), RUNS, tracker.names)
            context.say(f"{points:,} points wait")
            tracker.start()
            return _ingest(context, tracker, points, window_s)
        finally:
            tracker.close()


def _ingest(
    context: Context, tracker: TrackerProcess, points: int, window_s: float
) -> list[Result]:
    counter = tracker.client("service")
    wait_until("the first points", lambda: _rows(counter))
    process, stopping = psutil.Process(tracker.pid), threading.Event()
    waits: list[float] = []
    readers = [
        threading.Thread(target=_read, args=(tracker.client("service"), ask, waits, stopping))
        for ask in (_curves, _latest)
    ]
    for reader in readers:
        reader.start()
    began, first, cpu = time.perf_counter(), _rows(counter), _cpu_s(process)
    while time.perf_counter() - began < window_s and (rows := _rows(counter)) < points:
        time.sleep(0.5)
    took, cpu, rows = time.perf_counter() - began, _cpu_s(process) - cpu, _rows(counter) - first
    stopping.set()
    for reader in readers:
        reader.join()
    note = f"{took:.0f} s, {rows / cpu:,.0f} for a CPU second; backlog of {points:,}"
    return [
        context.result("sustained_points_per_s", rows / took, "points/s", note=note),
        context.median("sustained_reader_ms", waits, "ms"),
    ]


def _read(
    client: Client, ask: Callable[[Client], object], waits: list[float], stopping: threading.Event
) -> None:
    while not stopping.wait(ASK_EVERY_S):
        began = time.perf_counter()
        ask(client)
        waits.append((time.perf_counter() - began) * 1e3)


def _curves(client: Client) -> None:
    client.query(curve_sql.buckets(f"WHERE name = '{METRICS[0]}'", 1000))


def _latest(client: Client) -> None:
    client.query(curve_sql.latest("WHERE run_id = 'run-7'"))


def _rows(client: Client) -> int:
    return int(client.query("SELECT count() FROM gangline.steps").result_rows[0][0])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
