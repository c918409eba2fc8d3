"""How soon a browser draws the comparison of 50 runs of 1,000,000 steps, after a click.

Run it alone: python tests/bench/bench_compare_page.py [--steps N]. The gateway with the embedded
engine and the console are threads of one process, without a broker; Chromium is real.
- picture: from the click on "Compare" in the table of runs to the first plot with all its lines;
- page: of this, until the page has arrived; read: reading its curves; draw: from there on.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from bench_compare import RUNS, fill
from clickhouse_connect.driver.client import Client
from harness import Context, Result, as_program, in_own_process, scratch
from playwright.sync_api import Page

from gangline_console.app import create_app
from gangline_console.client import Gateway
from gangline_gateway.console_proxy import ConsoleProxy
from gangline_gateway.curves import CurveReader
from gangline_gateway.history import History
from gangline_gateway.history_access import HistoryAccess, Queries
from gangline_gateway.resources import ResourceReader
from gangline_schemas.gpu_prices import GpuPrices
from gangline_service.http_server import HttpServer
from gangline_tracker.engine import Engine
from gangline_tracker.migrate import migrate
from support.builders.gateway import TOKENS, GatewayHarness
from support.harnesses.console_page import CHROMIUM, NO_CHROMIUM, chromium, console_page

PARTS = ("picture", "page", "read", "draw")
IDS = [f"long-{number}" for number in range(RUNS)]
_ROWS = (
    "INSERT INTO gangline.runs (job_id, team, name, state, submitted_at, spec, hyperparameters, "
    "version) SELECT concat('long-', toString(number)), 'team', concat('run-', toString(number)), "
    "'succeeded', now(), '{{}}', map('lr', toString(number)), 1 FROM numbers({runs})"
)
_CLICK = """() => document.getElementById("compare").addEventListener("click", () =>
  sessionStorage.setItem("click", performance.timeOrigin + performance.now()), true)"""
_DRAWN = """() => performance.getEntriesByName("overlay loss").length > 0"""
_TIMES = """() => {
  const click = Number(sessionStorage.getItem("click")) - performance.timeOrigin;
  const page = performance.getEntriesByType("navigation")[0].responseEnd;
  const read = performance.getEntriesByType("resource").find((item) =>
    item.name.includes("/v1/runs/overlay"));
  const drawn = performance.getEntriesByName("overlay loss")[0].startTime;
  return { picture: drawn - click, page: page - click, read: read.responseEnd - read.startTime,
    draw: drawn - read.responseEnd };
}"""


def history(folder: Path, steps: int) -> HistoryAccess:
    """The runs in the engine, and its readers."""
    engine = Engine(f"chdb://{folder / 'db'}")
    client = engine.client()
    migrate(client)
    fill(client, steps)
    client.command(_ROWS.format(runs=RUNS))
    client.close()

    def connect() -> Queries:
        opened: Client = engine.client()
        away: Any = None
        return Queries(
            History(opened),
            CurveReader(opened),
            away,
            away,
            away,
            away,
            ResourceReader(opened, GpuPrices()),
            away,
        )

    return HistoryAccess(connect)


def one(page: Page, url: str) -> dict[str, float]:
    """Milliseconds of each part, of one click."""
    page.goto(f"{url}/console/runs?sel={','.join(IDS)}")
    page.evaluate(_CLICK)
    page.get_by_role("button", name=f"Compare {RUNS} selected").click()
    page.wait_for_url("**/console/compare**")
    page.wait_for_function(_DRAWN)
    times: dict[str, float] = page.evaluate(_TIMES)
    return times


def measure(steps: int, repeats: int) -> dict[str, dict[str, float]]:
    with (
        scratch() as folder,
        closing(HttpServer("127.0.0.1")) as server,
        closing(HttpServer("127.0.0.1")) as console,
    ):
        url = f"http://127.0.0.1:{server.port}"
        harness = GatewayHarness(folder, history(folder, steps))
        harness.start()
        harness.configure("team")
        console.start(create_app(Gateway(url), "secret"))
        proxy = ConsoleProxy(f"http://127.0.0.1:{console.port}")
        server.start(harness.app(server.port, proxy))
        with chromium() as browser, console_page(browser, url, TOKENS["admin"]) as opened:
            one(opened.page, url)
            found = [one(opened.page, url) for _ in range(repeats)]
        harness.stop()
    return {
        part: {
            "ms": median(times[part] for times in found),
            "least_ms": min(times[part] for times in found),
            "most_ms": max(times[part] for times in found),
        }
        for part in PARTS
    }


def run(context: Context) -> list[Result]:
    """The time from the click with its target, and its parts."""
    if CHROMIUM is None:
        context.say(NO_CHROMIUM)
        return []
    steps = 100_000 if context.quick else 1_000_000
    figures = in_own_process("bench_compare_page", "--steps", str(steps), timeout_s=1200)
    return [
        context.result(
            f"compare_{part}_ms", found["ms"], "ms",
            note=f"{found['least_ms']:.0f}..{found['most_ms']:.0f} ms",
        )
        for part, found in figures.items()
    ]  # fmt: skip


if __name__ == "__main__":
    as_program(measure, steps=1_000_000, repeats=10)
