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
from gangline_gateway.curves import CurveQuery, CurveReader
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import wait_until

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
            return _ingest(context, tracker, kafka.pid, points, window_s)
        finally:
            tracker.close()


def _ingest(
    context: Context, tracker: TrackerProcess, broker: int | None, points: int, window_s: float
) -> list[Result]:
    counter = tracker.client("service")
    wait_until("the first points", lambda: _rows(counter))
    processes, stopping = [psutil.Process(tracker.pid), psutil.Process(broker)], threading.Event()
    waits: list[float] = []
    failures: list[Exception] = []
    readers = [
        threading.Thread(
            target=_read,
            args=(CurveReader(tracker.client("service")), ask, waits, failures, stopping),
        )
        for ask in (_curves, _latest)
    ]
    for reader in readers:
        reader.start()
    began, first, cpu = time.perf_counter(), _rows(counter), [*map(_cpu_s, processes)]
    while time.perf_counter() - began < window_s and (rows := _rows(counter)) < points:
        time.sleep(0.5)
    took, rows = time.perf_counter() - began, _rows(counter) - first
    used = [_cpu_s(process) - before for process, before in zip(processes, cpu, strict=True)]
    stopping.set()
    for reader in readers:
        reader.join()
    for failure in failures[:1]:
        context.say(f"a reader's query failed: {failure}")
    note = f"{took:.0f} s; backlog of {points:,}"
    shares = ", broker ".join(f"{each / rows * 1e6:.2f}" for each in used)
    return [
        context.result("sustained_points_per_s", rows / took, "points/s", note=note),
        context.result(
            "sustained_cpu_us_per_point", sum(used) / rows * 1e6, "us", note=f"tracker {shares}"
        ),
        context.median("sustained_reader_ms", waits, "ms"),
        context.result("sustained_reader_failures", len(failures), "queries"),
    ]


def _read(
    reader: CurveReader,
    ask: Callable[[CurveReader], object],
    waits: list[float],
    failures: list[Exception],
    stopping: threading.Event,
) -> None:
    while not stopping.wait(ASK_EVERY_S):
        began = time.perf_counter()
        try:
            ask(reader)
        except Exception as error:
            failures.append(error)
            return
        waits.append((time.perf_counter() - began) * 1e3)


def _curves(reader: CurveReader) -> None:
    teams = {f"run-{number}": f"team-{number % 5}" for number in range(RUNS)}
    reader.curves(CurveQuery(teams, [METRICS[0]], points=300))


def _latest(reader: CurveReader) -> None:
    reader.latest({"run-7": "team-2"})


def _rows(client: Client) -> int:
    return int(client.query("SELECT count() FROM gangline.steps").result_rows[0][0])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
