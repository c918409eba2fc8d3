"""How fast curves of many long runs are read: the gateway's queries on the embedded engine.

Run it alone: python tests/bench/bench_compare.py [--steps N]. The store has 50 runs of 1,000,000
steps of one metric, and 1,000 runs of 100 metrics. No broker and no HTTP: engine, query, answer.
- overlay: 50 whole curves of about 300 points, as the JSON of the REST answer;
- zoom: the same of a tenth of the steps;
- latest: the last, lowest and highest values of 100 metrics of 1,000 runs, as columns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from clickhouse_connect.driver.client import Client
from harness import Context, Result, as_program, in_own_process, scratch

from gangline_gateway import curve_sql
from gangline_gateway.curves import CurveQuery, CurveReader
from gangline_schemas.api.runs import Curves
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate

RUNS, POINTS = 50, 300
SHORT_RUNS, METRICS, SHORT_STEPS = 1000, 100, 20
BATCH_ROWS = 1_000_000
ONE_BLOCK = {"max_insert_block_size": BATCH_ROWS, "min_insert_block_size_rows": BATCH_ROWS}
_ROWS = (
    "INSERT INTO gangline.steps SELECT 'team', {run} AS run_id, 1, 0, {step} AS step, "
    "fromUnixTimestamp64Milli(toInt64(1700000000000 + step * 100)), {name}, "
    "1 / (1 + step) + rand() / 1e11, 0, number, toDateTime('2026-01-01') FROM numbers({rows})"
)


def fill(client: Client, steps: int) -> None:
    """Long runs step by step, as they come; then the short ones."""
    each = BATCH_ROWS // RUNS
    for first in range(0, steps, each):
        count = min(each, steps - first)
        sql = _ROWS.format(
            run=f"concat('long-', toString(number % {RUNS}))",
            step=f"{first} + intDiv(number, {RUNS})",
            name="'loss'",
            rows=count * RUNS,
        )
        client.command(sql, settings=ONE_BLOCK)
    for first in range(0, SHORT_STEPS, 10):
        sql = _ROWS.format(
            run=f"concat('short-', toString(number % {SHORT_RUNS}))",
            step=f"{first} + intDiv(number, {SHORT_RUNS * METRICS})",
            name=f"concat('m-', toString(intDiv(number, {SHORT_RUNS}) % {METRICS}))",
            rows=10 * SHORT_RUNS * METRICS,
        )
        client.command(sql, settings=ONE_BLOCK)


def timed(ask: Callable[[], int], repeats: int) -> dict[str, float]:
    """Wall and CPU time of an answer in ms, medians; the first answer is not counted."""
    ask()
    walls, cpus = [], []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        ask()
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
    return {
        "wall_ms": statistics.median(walls),
        "cpu_ms": statistics.median(cpus),
        "least_ms": min(walls),
        "most_ms": max(walls),
    }


def measure(steps: int, repeats: int) -> dict[str, dict[str, float]]:
    with scratch() as folder:
        client = Engine(f"chdb://{folder / 'db'}").client()
        migrate(client)
        fill(client, steps)
        reader = CurveReader(client)
        whole = CurveQuery({f"long-{n}": "team" for n in range(RUNS)}, ["loss"], points=POINTS)
        part = replace(whole, first=steps * 0.4, last=steps * 0.5 - 1)

        def curves(asked: CurveQuery) -> int:
            found = reader.curves(asked)
            assert len(found) == RUNS
            assert all(len(curve.points) > POINTS // 2 for curve in found)
            return len(Curves(curves=found).model_dump_json())

        def latest() -> int:
            rows = client.query_arrow(curve_sql.latest("WHERE startsWith(run_id, 'short-')"))
            assert rows.num_rows == SHORT_RUNS * METRICS
            return rows.num_rows

        found = {
            "overlay": timed(lambda: curves(whole), repeats),
            "zoom": timed(lambda: curves(part), repeats),
            "latest": timed(latest, repeats),
        }
        client.close()
    return found


def run(context: Context) -> list[Result]:
    """Wall times with the targets, and CPU times, which say the same on a busy machine."""
    steps = 100_000 if context.quick else 1_000_000
    figures = in_own_process("bench_compare", "--steps", str(steps), timeout_s=1200)
    results = []
    for name, found in figures.items():
        note = f"{found['least_ms']:.0f}..{found['most_ms']:.0f} ms"
        results.append(context.result(f"compare_{name}_ms", found["wall_ms"], "ms", note=note))
        results.append(context.result(f"compare_{name}_cpu_ms", found["cpu_ms"], "ms"))
    return results


if __name__ == "__main__":
    as_program(measure, steps=1_000_000, repeats=15)
