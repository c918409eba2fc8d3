"""How long pages and searches of a job's log take with 20,000,000 lines in the store.

Run it alone: python tests/bench/bench_logs.py [--lines N]. One job has all lines of 64 ranks; each
figure is what the route asks for, and a page has 1,000 lines.
- `logs_first_ms`, `logs_last_ms`: the first page, and the newest lines.
- `logs_cursor_ms`: the page after a cursor in the middle, and of one rank in `logs_rank_ms`.
- `logs_back_ms`: the page before that cursor.
- `logs_found_ms`: the first page of a word that each 50th line has.
- `logs_errors_ms`: lines that look like errors, 20 in all, which an index finds.
- `logs_rare_ms`: a word that one line has, so the engine reads the whole log.
"""

from __future__ import annotations

import statistics
import time

from bench_dashboards import ONE_BLOCK
from clickhouse_connect.driver.client import Client
from harness import Context, Result, as_program, in_own_process, scratch

from gangline_gateway.history import History
from gangline_gateway.log_pages import LogFilter
from gangline_schemas.api.logs import LogPage
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate

LINES, RANKS, BLOCK = 20_000_000, 64, 1_000_000
PAGE = 1000
START_MS = 1_767_225_600_000
STEP_MS = 3
_TEXT = """concat('step ', toString(number), ' loss ', toString(round(rand() / 4294967296, 6)),
' tokens/s ', toString(rand(1) % 100000), if(number % 50 = 0, ' saved', ''),
if(number = 3000000, ' needle', ''), if(number % 1000000 = 7, ' RuntimeError: NCCL error', ''))"""


def fill(client: Client, lines: int) -> None:
    """The lines of one job, with lines of another before and after them in the table's order."""
    for first in range(0, lines, BLOCK):
        client.command(
            f"""INSERT INTO gangline.logs SELECT 'nlp', 'big', 1, number % {RANKS},
            concat('node-', toString(number % 8)), intDiv(number, {RANKS}),
            fromUnixTimestamp64Milli(toInt64({START_MS} + {STEP_MS} * number)), 'stdout', {_TEXT},
            0, number, toDateTime('2026-01-01 00:00:00') FROM numbers({first}, {BLOCK})""",
            settings=ONE_BLOCK,
        )
    for job in ("before", "later"):
        client.command(
            f"INSERT INTO gangline.logs SELECT * REPLACE ('{job}' AS job_id) FROM gangline.logs "
            f"WHERE line < {BLOCK // RANKS}",
            settings=ONE_BLOCK,
        )


def measure(lines: int, repeats: int) -> dict[str, list[float]]:
    """Times in ms, by figure."""
    with scratch() as folder:
        client = Engine(f"chdb://{folder / 'db'}").client()
        migrate(client)
        fill(client, lines)
        history, half = History(client), lines // 2
        middle = f"1.{START_MS + STEP_MS * half}.{half % RANKS}.{half // RANKS}"

        def page(cursor: str | None = None, *, tail: bool = False, **wanted: object) -> LogPage:
            chosen = LogFilter("big", "nlp", **wanted)  # type: ignore[arg-type]
            return history.logs(chosen, limit=PAGE, cursor=cursor, tail=tail)

        asked = {
            "first": page,
            "last": lambda: page(tail=True),
            "cursor": lambda: page(middle),
            "rank": lambda: page(middle, rank=17),
            "back": lambda: page(middle, tail=True),
            "found": lambda: page(contains="saved"),
        }
        rare = {"rare": lambda: page(contains="needle"), "errors": lambda: page(errors=True)}
        found: dict[str, list[float]] = {}
        for name, ask in {**asked, **rare}.items():
            count = len(ask().lines)
            if count != (PAGE if name in asked else {"rare": 1, "errors": lines // BLOCK}[name]):
                raise RuntimeError(f"{name}: {count} lines")
            found[name] = []
            for _ in range(repeats):
                client.command("SYSTEM DROP QUERY CONDITION CACHE")  # each search is a first one
                begun = time.perf_counter()
                ask()
                found[name].append((time.perf_counter() - begun) * 1e3)
        return found


def run(context: Context) -> list[Result]:
    """Each page and each search."""
    lines = LINES // 4 if context.quick else LINES
    arguments = ("--lines", str(lines), "--repeats", str(context.repeats(10, 3)))
    figures = in_own_process("bench_logs", *arguments, timeout_s=1200)
    return [
        context.result(
            f"logs_{name}_ms", statistics.median(times), "ms", note=f"at most {max(times):.0f}"
        )
        for name, times in figures.items()
    ]


if __name__ == "__main__":
    as_program(measure, lines=LINES, repeats=10)
