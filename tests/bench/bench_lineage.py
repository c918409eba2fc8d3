"""How long the lineage of an alias takes with 100,000 runs and 10,000 moves in the store.

Run it alone: python tests/bench/bench_lineage.py [--runs N]. A tenth of the moves are of different
aliases.
- `lineage_call_ms`: what the route asks for one alias: run, tags, incidents, announcement.
- `lineage_view_ms`: the same alias by the SQL view, as an outside client asks.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench_dashboards import NOWHERE, ONE_BLOCK, RUNS, fill_runs
from clickhouse_connect.driver.client import Client
from harness import Context, Result, as_program, in_own_process, scratch

from gangline_gateway.history import History
from gangline_gateway.incidents import IncidentFilter, Incidents
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate
from gangline_tracker.reader import QueryReader

MOVES, ALIASES = 10_000, 1_000
_SNAPSHOT = "concat('news@xxh3-', leftPad(toString(number % 500), 32, '0'))"
_MODEL = f"concat('model-', toString(number % {ALIASES}))"
_EVENT = """INSERT INTO gangline.events SELECT 'gangline.registry', {nowhere}, number * 4 + {place},
now64(3), '{type}', toString(number), 'registry', {subject}, 'team-1', '', {data}, now()
FROM numbers({moves})"""
_DATA = {
    "model.version.begun": f"""concat('{{"model": "', {_MODEL}, '", "registration": ',
toString(number), ', "checkpoint": {{"job_id": "llama-sft-', leftPad(toString(number), 10, '0'),
'", "attempt": 1, "step": 600}}, "snapshot": "', {_SNAPSHOT}, '"}}')""",
    "model.version.registered": f"""concat('{{"model": "', {_MODEL}, '", "registration": ',
toString(number), ', "version": ', toString(intDiv(number, {ALIASES}) + 1), '}}')""",
    "alias.moved": f"""concat('{{"model": "', {_MODEL}, '", "alias": "champion", "to_version": ',
toString(intDiv(number, {ALIASES}) + 1), ', "by": "ada", "kind": "gate"}}')""",
    "snapshot.announced": f"""concat('{{"snapshot": "', {_SNAPSHOT},
'", "place": "s3://data", "sources": ["a.jsonl"]}}')""",
}


def fill_registry(client: Client) -> None:
    """Versions of many runs, and moves of many aliases."""
    for place, (name, data) in enumerate(_DATA.items()):
        subject = "'team-1'" if name == "snapshot.announced" else _MODEL
        values = {"place": place, "type": name, "subject": subject, "data": data}
        sql = _EVENT.format(nowhere=NOWHERE, moves=MOVES, **values)
        client.command(sql, settings=ONE_BLOCK)


def measure(runs: int, repeats: int) -> dict[str, list[float]]:
    """Times in ms, by figure."""
    with scratch() as folder:
        engine = Engine(f"chdb://{folder / 'db'}")
        client = engine.client()
        migrate(client)
        fill_runs(client, runs)
        fill_registry(client)
        history, incidents = History(client), Incidents(client)
        job = f"llama-sft-{MOVES - ALIASES + 7:010d}"
        snapshot = f"news@xxh3-{7:032d}"

        def call() -> None:
            found = history.run(job)
            wanted = IncidentFilter(job_id=job)
            incidents.page(wanted, limit=50, cursor=None)
            if found is None or not history.announced("team-1", snapshot):
                raise RuntimeError("the lineage is not there")

        reader = QueryReader(engine.path)
        sql = "SELECT job_id, seed, snapshot_sources FROM gangline.lineage "
        sql += "WHERE team = 'team-1' AND model = 'model-7' AND alias = 'champion'"

        def view() -> None:
            body = reader.query(sql, None, default_format="TSV").body
            if job.encode() not in body or b"a.jsonl" not in body:
                raise RuntimeError(f"the lineage is {body[:200]!r}")

        return {"call": _times(call, repeats), "view": _times(view, repeats)}


def _times(work: Callable[[], None], repeats: int) -> list[float]:
    work()
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        found.append((time.perf_counter() - begun) * 1e3)
    return found


def run(context: Context) -> list[Result]:
    """Both ways to one alias."""
    runs = RUNS // 10 if context.quick else RUNS
    figures = in_own_process("bench_lineage", "--runs", str(runs), timeout_s=1200)
    return [
        context.result(f"lineage_{name}_ms", statistics.median(times), "ms")
        for name, times in figures.items()
    ]


if __name__ == "__main__":
    as_program(measure, runs=RUNS, repeats=10)
