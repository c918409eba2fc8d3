"""How fast the dashboards' queries are with 100,000 runs in the store.

Run it alone: python tests/bench/bench_dashboards.py [--runs N]. The store has the runs of 90 days
of 20 teams, with their usage, events, checkpoints and failures. It has six hours of heartbeats, one
a second, of 250 nodes of 8 GPUs, and three runs of 200,000 steps of seven metrics. Each query runs
for an admin and all teams, over the time range with which its dashboard opens; no HTTP.
- `dashboards_slowest_ms`: the median time of the slowest query; its note names it.
- `dashboards_slowest_cpu_ms`: the CPU time of the query that needs most.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from clickhouse_connect.driver.client import Client
from harness import Context, Result, as_program, in_own_process, scratch

from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate
from gangline_tracker.reader import QueryReader
from support.grafana import ALL, Screen, boards, queries

RUNS, TEAMS, DAYS, NODES, GPUS = 100_000, 20, 90, 250, 8
BEATS_S, STEPS, LONG_RUNS = 6 * 3600, 200_000, 3
METRICS = ("loss", "lr", "grad_norm", "tokens_per_s", "step_s", "data_wait_s", "mfu")
ONE_BLOCK = {"max_insert_block_size": 1_000_000, "min_insert_block_size_rows": 1_000_000}
POINTS_PER_PANEL = 300
NOWHERE = 9_999
"""A partition that no topic has: a tracker over the store starts at the beginning of its topics."""
_UNITS_S = {"h": 3600, "d": 86400}

_AT = "(now64(3) - toIntervalSecond(toUInt32({days} * 86400 * (1 - number / {runs}))))"
_STATE = "if(number + 1500 > {runs}, if(number % 3 = 0, 'running', 'pending'), "
_STATE += "if(number % 25 = 0, 'failed', 'succeeded'))"
_SUBJECT = "concat('llama-sft-', leftPad(toString(number), 10, '0'))"
_SPEC = """concat('{{"name": "llama-sft", "command": ["python", "-m", "train"], ',
'"resources": {{"gpus": 4}}, "env": {{"NOTE": "', repeat('x', 700), '"}}}}')"""
_RUNS = f"""INSERT INTO gangline.runs (* EXCEPT(mlflow_run_id)) SELECT {_SUBJECT} AS job_id,
concat('team-', toString(number % {{teams}})) AS team, concat('project-', toString(number % 60)),
'llama-sft', concat('user-', toString(number % 200)), {_STATE} AS state,
if(state = 'pending', 'needs 4 GPUs together; 2 are free', ''), 1 + number % 3, number % 3,
4 * (1 + number % 4), 30, {_AT} AS submitted,
if(state = 'pending', NULL, submitted + toIntervalSecond(number % 7200)) AS started,
if(state IN ('pending', 'running'), NULL, started + toIntervalSecond(600 + number % 7200)),
if(state = 'pending', 0, 4000 + number % 90000), 'fsdp', '3f2c1ab', 'corpus@sha256-9f',
map('lr', '0.0003', 'steps', '1000'), {_SPEC}, 1,
'h100', if(state = 'pending', map(), map('h100', 4000.0))
FROM numbers({{runs}})"""
_USAGE = f"""INSERT INTO gangline.usage (* EXCEPT(cpus, cpu_seconds)) SELECT
concat('team-', toString(number % {{teams}})),
{_SUBJECT}, 1, 4, {_AT} AS at, at + toIntervalSecond(3600), 14400, 1
FROM numbers({{runs}} - 1500)"""
_INCIDENTS = f"""INSERT INTO gangline.incidents SELECT
concat('team-', toString(number % {{teams}})), {_SUBJECT}, 1, 'recovered', 'process',
if(number % 2 = 0, 'process', 'node'), 'restart', 'rank 3 was killed by signal 9', 3,
concat('node-', toString(number % {NODES})), [], false, 1, 8, 1234, 1200, 1200, {_AT} AS at, 2,
at, at, at, at, 3 + number % 60, 17.5, 3, 164, 1 FROM numbers({{runs}}) WHERE number % 4 = 0"""
_CHECKPOINTS = f"""INSERT INTO gangline.checkpoints SELECT job_id, 1, step, status,
at + toIntervalSecond(step), 8, 1610612736, 16, 0.8, 0.03, 0.2,
if(status = 'committed', concat('teams/nlp/checkpoints/', job_id, '/COMMIT.json'), ''), '', map(),
step FROM (SELECT {_SUBJECT} AS job_id, {_AT} AS at,
arrayJoin([120, 240, 360, 480, 600]) AS step,
if(number % 50 = 0, 'abandoned', 'committed') AS status FROM numbers({{runs}}))"""
_TYPES = """['job.submitted', 'job.queued', 'gang.allocated', 'job.state.changed',
'job.state.changed', 'gang.running', 'checkpoint.committed', 'checkpoint.committed',
'checkpoint.interval.advised', 'gang.released', 'usage.charged', 'alert.raised']"""
_EVENTS = f"""INSERT INTO gangline.events SELECT 'gangline.scheduling', {NOWHERE},
number * 12 + place, {_AT} + toIntervalMillisecond(place * 40), type, toString(number),
'scheduler', {_SUBJECT}, concat('team-', toString(number % {{teams}})), '',
concat('{{{{"job_id": "x", "state": "running", "risk": "", "number": ', toString(number),
', "padding": "', repeat('x', 300), '"}}}}'), now()
FROM (SELECT number, arrayJoin(arrayZip({_TYPES}, range(12))) AS pair, pair.1 AS type,
pair.2 AS place FROM numbers({{runs}})) WHERE type != 'alert.raised' OR number % 500 = 0"""
_HEARTBEATS = f"""INSERT INTO gangline.heartbeats SELECT
concat('node-', toString(number % {NODES})), 'i', intDiv(number, {NODES}),
now64(3) - toIntervalSecond({BEATS_S} - intDiv(number, {NODES})), 20 + number % 50, 512,
[concat('long-', toString(number % {LONG_RUNS}))], range({GPUS}),
arrayMap(x -> 80.0 + x, range({GPUS})), arrayMap(x -> 60.0 + x, range({GPUS})),
arrayMap(x -> 50.0 + x, range({GPUS})), 0, number, now(),
if(intDiv(number, {NODES}) % 30 = 0, 1.0, NULL) AS used, used, used, used, used, used,
arrayMap(x -> 600.0, range(if(isNull(used), 0, {GPUS}))),
arrayMap(x -> 90.0, range(if(isNull(used), 0, {GPUS}))) FROM numbers({NODES * BEATS_S})"""
_STEPS = f"""INSERT INTO gangline.steps SELECT 'team-1',
concat('long-', toString(number % {LONG_RUNS})), 1, 0, intDiv(number, {LONG_RUNS}) AS step,
now64(3) - toIntervalSecond({STEPS} / 10 - step / 10), '{{name}}', 1 / (1 + step), 0, number, now()
FROM numbers({STEPS * LONG_RUNS})"""
_LOGS = """INSERT INTO gangline.logs SELECT 'team-1', concat('long-', toString(number % 3)), 1,
number % 8, 'node-1', number, now64(3) - toIntervalSecond(number / 200), 'stdout',
repeat('step ', 20), 0, number, now() FROM numbers(1000000)"""
_POINTS = f"""INSERT INTO gangline.metric_points SELECT 'team-1',
concat('run-', toString(number % 100)), '{METRICS[0]}', intDiv(number, 100),
toUnixTimestamp64Milli(now64(3)) - number, 1, false, 0, number, now() FROM numbers(1000000)"""


def fill_runs(client: Client, runs: int) -> None:
    """Runs with their usage, incidents, checkpoints and events."""
    for sql in (_RUNS, _USAGE, _INCIDENTS, _CHECKPOINTS, _EVENTS):
        client.command(sql.format(runs=runs, teams=TEAMS, days=DAYS), settings=ONE_BLOCK)


def fill(client: Client, runs: int) -> None:
    """All tables."""
    fill_runs(client, runs)
    for sql in (_HEARTBEATS, _LOGS, _POINTS):
        client.command(sql, settings=ONE_BLOCK)
    for name in METRICS:
        client.command(_STEPS.format(name=name), settings=ONE_BLOCK)


def screens() -> Mapping[str, Screen]:
    """What a viewer sees who opens each dashboard."""
    now, chosen = datetime.now(UTC), {"team": ALL, "metric": "loss", "prices": "h100=2"}
    found = {}
    for name, board in boards().items():
        since = board["time"]["from"].removeprefix("now-")
        range_s = int(since[:-1]) * _UNITS_S[since[-1]]
        several = [f"long-{number}" for number in range(LONG_RUNS)]
        found[name] = Screen(
            now - timedelta(seconds=range_s),
            now,
            max(1, range_s // POINTS_PER_PANEL),
            {**chosen, "run": several if name == "tracking" else "long-1"},
        )
    return found


def measure(runs: int, repeats: int) -> dict[str, dict[str, float]]:
    """Medians of wall and CPU time in ms, and the size of the answer, by query."""
    with scratch() as folder:
        engine = Engine(f"chdb://{folder / 'db'}")
        client = engine.client()
        migrate(client)
        fill(client, runs)
        reader, seen = QueryReader(engine.path), screens()
        found = {}
        for asked in queries():
            sql = seen[asked.board].expanded(asked.sql)
            size = len(reader.query(sql, None, default_format="Native").body)
            walls, cpus = [], []
            for _ in range(repeats):
                wall, cpu = time.perf_counter(), time.process_time()
                reader.query(sql, None, default_format="Native")
                walls.append((time.perf_counter() - wall) * 1e3)
                cpus.append((time.process_time() - cpu) * 1e3)
            found[str(asked)] = {
                "wall_ms": statistics.median(walls),
                "cpu_ms": statistics.median(cpus),
                "bytes": size,
            }
        client.close()
    return found


def run(context: Context) -> list[Result]:
    """The slowest queries."""
    runs = RUNS // 10 if context.quick else RUNS
    figures = in_own_process("bench_dashboards", "--runs", str(runs), timeout_s=1200)
    results = []
    for name, key in (
        ("dashboards_slowest_ms", "wall_ms"),
        ("dashboards_slowest_cpu_ms", "cpu_ms"),
    ):
        worst = max(figures, key=lambda title: figures[title][key])
        note = f"{worst}; of {len(figures)} queries"
        results.append(context.result(name, figures[worst][key], "ms", note=note))
    return results


if __name__ == "__main__":
    as_program(measure, runs=RUNS, repeats=5)
