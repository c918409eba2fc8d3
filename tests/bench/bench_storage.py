"""What a point of a metric takes on disk, roll-ups and all columns included.

Run it alone: python tests/bench/bench_storage.py [--points N]. Each table gets runs with eight
metrics as training has them. Loss and gradient norm are in single precision with noise, the
learning rate on a cosine, rates and times of steps rounded, with noise. The utilization is in
double precision with noise, and memory hardly changes. Rows come step by step from all runs, in
INSERTs as large as the tracker's, and are merged by the engine as usual.
"""

from __future__ import annotations

import time

from clickhouse_connect.driver.client import Client
from harness import Context, Result, as_program, in_own_process, scratch

from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate
from gangline_tracker.sink import INSERT_SETTINGS

RUNS, METRICS = 50, 8
BATCH = 500_000
SETTLED_S = 5.0
"""Without a merge for so long, parts stay as they are."""
_VALUES = (
    ("loss", "toFloat32(1.5 + 8 * exp(-s / 20000) + randNormal(0, 0.05))"),
    ("lr", "3e-4 * 0.5 * (1 + cos(pi() * s / 100000))"),
    ("grad_norm", "toFloat32(exp(randNormal(0, 0.3)))"),
    ("tokens_per_s", "round(52000 + randNormal(0, 400), 1)"),
    ("step_s", "round(0.25 + randNormal(0, 0.002), 6)"),
    ("data_wait_s", "round(abs(randNormal(0, 0.001)), 6)"),
    ("mfu", "0.42 + randNormal(0, 0.004)"),
    ("memory_gb", "61.5 + intDiv(s, 5000) / 8"),
)
_POINTS = """
SELECT concat('job-', toString(number % {runs})) AS run, {step} AS s,
  intDiv(number, {runs}) % {metrics} AS m, multiIf({values}, 0.0) AS value,
  1700000000000 + s * 250 + rand() % 5 AS time_ms, intDiv(number, 160) AS record
FROM numbers({rows})
"""
_STEPS = (
    "INSERT INTO gangline.steps SELECT 'team', run, 1, 0, s, fromUnixTimestamp64Milli(time_ms), "
    "{name}, value, 0, record, toDateTime('2026-01-01') FROM ({points})"
)
_METRICS = (
    "INSERT INTO gangline.metric_points SELECT 'team', run, {name}, s, time_ms, value, false, 0, "
    "record, toDateTime('2026-01-01') FROM ({points})"
)
_NAME = f"arrayElement({[name for name, _ in _VALUES]}, m + 1)"
_SIZES = """
SELECT sum(bytes_on_disk), sum(rows) FROM system.parts
WHERE active AND database = 'gangline' AND table = {table:String}
"""


def fill(client: Client, insert: str, points: int) -> None:
    each = BATCH // (RUNS * METRICS)
    values = ", ".join(f"m = {index}, {value}" for index, (_, value) in enumerate(_VALUES))
    for first in range(0, points // (RUNS * METRICS), each):
        rows = _POINTS.format(
            runs=RUNS,
            metrics=METRICS,
            step=f"toInt64({first} + intDiv(number, {RUNS * METRICS}))",
            values=values,
            rows=each * RUNS * METRICS,
        )
        client.command(insert.format(name=_NAME, points=rows), settings=INSERT_SETTINGS)


def settle(client: Client) -> None:
    """Wait until nothing is merged."""
    quiet = time.monotonic()
    while time.monotonic() - quiet < SETTLED_S:
        if client.query("SELECT count() FROM system.merges").result_rows[0][0]:
            quiet = time.monotonic()
        time.sleep(0.2)


def measure(points: int) -> dict[str, float]:
    found = {}
    with scratch() as folder:
        client = Engine(f"chdb://{folder / 'db'}").client()
        migrate(client)
        for table, insert in (("steps", _STEPS), ("metric_points", _METRICS)):
            fill(client, insert, points)
            settle(client)
            ((size, rows),) = client.query(_SIZES, parameters={"table": table}).result_rows
            found[table] = size / rows
        client.close()
    return found


def run(context: Context) -> list[Result]:
    """Bytes a point of steps that jobs report, and of metrics that MLflow's clients log."""
    points = 4_000_000 if context.quick else 20_000_000
    figures = in_own_process("bench_storage", "--points", str(points))
    return [
        context.result(f"storage_{table}_bytes_a_point", found, "bytes")
        for table, found in figures.items()
    ]


if __name__ == "__main__":
    as_program(measure, points=20_000_000)
