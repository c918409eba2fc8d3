"""What the console costs at design size: its pages in Chromium, and 200 viewers of live pages.

Run it alone: python tests/bench/bench_console.py [--runs N] [--newest N] [--answers N] [--loads N]
[--viewers N] [--seconds N]. `console_cluster.py` says what the cluster has. All processes and the
browser share the machine's cores.
- server: from a request for a page to its whole answer, over HTTP, through gateway and console;
  and the CPU time of these two and the tracker, which other load on the machine changes less.
- paint, load: first contentful paint, and the end of the load event or of the last answer to a
  script, whichever is later; each load has an empty cache.
- bytes: what a load with an empty cache transfers, compressed, without ECharts and open streams.
- map: drawing 10,000 GPUs, script and layout, without reading them.
- change: from a job's change of state, by the time of its event, to its row in the table of jobs;
  meanwhile each running job takes a step a second.
- viewers: CPU and memory (PSS) of gateway and console while each job takes a step a second, with
  the streams of `/v1/changes` and without. No page is loaded meanwhile.
"""

from __future__ import annotations

import multiprocessing
import random
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.sharedctypes import Synchronized
from typing import Any
from urllib.parse import urlsplit

import httpx
from console_cluster import ConsoleCluster, Cost, console_cluster, tour
from harness import Context, Result, as_program, in_own_process, scratch
from playwright.sync_api import Browser

from gangline_schemas.events.scheduling import JobStateChanged
from gangline_schemas.job import JobState
from support.harnesses.console_page import (
    CHROMIUM,
    NO_CHROMIUM,
    ConsolePage,
    chromium,
    console_page,
)
from support.harnesses.console_tour import stops
from support.waiting import wait_until

SETTLED_MS = 400
"""Answers to scripts that begin later than so long after the load event are live changes."""
ROW_BYTES = 1_000
"""More than a stream's headers."""
_SPAWN = multiprocessing.get_context("spawn")
_FIGURES = """() => {
  const page = performance.getEntriesByType("navigation")[0];
  const parts = performance.getEntriesByType("resource");
  const own = parts.filter((part) => !part.name.includes("echarts"));
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return {
    paint_ms: paint ? paint.startTime : page.loadEventEnd,
    load_ms: Math.max(page.loadEventEnd, ...parts.map((part) => part.responseEnd)),
    kb: own.reduce((sum, part) => sum + part.transferSize, page.transferSize) / 1000,
  };
}"""
_MAP = """async () => {
  const script = performance.getEntriesByType("resource").find((part) =>
    part.name.endsWith("/gpumap.js"));
  const { GpuMap } = await import(script.name);
  const { nodes } = await (await fetch("/v1/gpus")).json();
  const [place, legend] = [document.getElementById("map"), document.getElementById("legend")];
  const began = performance.now();
  new GpuMap(place, legend).show(nodes);
  place.getBoundingClientRect();
  return { ms: performance.now() - began,
    gpus: nodes.reduce((sum, node) => sum + node.gpus.length, 0) };
}"""


_WATCH = """([job, state]) => {
  const cell = document.querySelector(`tr[data-job="${job}"] [data-cell=state]`);
  window.seen = new Promise((done) => new MutationObserver(() => {
    if (cell.textContent.includes(state)) done(Date.now());
  }).observe(cell, { subtree: true, childList: true, characterData: true }));
}"""


def answers(cluster: ConsoleCluster, path: str, count: int) -> dict[str, Any]:
    """P95 and CPU in milliseconds of so many answers, and their status; the first is not counted.

    CPU: of gateway, console and tracker together.
    """
    taken: list[float] = []
    status, first_s = 200, 0.0
    headers = {"Authorization": f"Bearer {cluster.token}"}
    with httpx.Client(base_url=cluster.url, headers=headers, timeout=60, trust_env=False) as client:
        for number in range(count + 1):
            first_s = cluster.cpu_s() if number == 1 else first_s
            began_s = time.perf_counter()
            status = max(status, client.get(f"/console{path}").status_code)
            taken.append((time.perf_counter() - began_s) * 1e3)
    cpu_ms = (cluster.cpu_s() - first_s) / count * 1e3
    return {"server_ms": p95(taken[1:]), "cpu_ms": cpu_ms, "status": status}


def loads(browser: Browser, state: Any, url: str, count: int) -> list[dict[str, float]]:
    """Figures of so many loads of a page, each with an empty cache."""
    found = []
    for _ in range(count):
        with browser.new_context(
            storage_state=state, viewport={"width": 1400, "height": 900}
        ) as context:
            page = context.new_page()
            page.goto(url, timeout=60_000)
            page.wait_for_timeout(SETTLED_MS)
            found.append(page.evaluate(_FIGURES))
    return found


def p95(values: list[float]) -> float:
    """The largest one of few."""
    return statistics.quantiles(values, n=20, method="inclusive")[18] if values[1:] else values[0]


def changes(cluster: ConsoleCluster, signed_in: ConsolePage, count: int) -> list[float]:
    """Milliseconds of so many changes of a job's state."""
    page, job = signed_in.page, tour(cluster.runs).running
    states = [JobState.RUNNING, JobState.CHECKPOINTING]
    found = []
    with cluster.progressing():
        signed_in.go("/jobs")
        page.locator("#live", has_text="live").wait_for()
        for number in range(count):
            previous, state = states[number % 2], states[1 - number % 2]
            page.evaluate(_WATCH, [job, state.value])
            page.wait_for_timeout(1000 * random.random())
            at = datetime.now(UTC)
            event = JobStateChanged(job_id=job, attempt=1, previous=previous, state=state)
            cluster.log.say(event, job, at)
            cluster.log.flush()
            found.append(page.evaluate("() => window.seen") - at.timestamp() * 1e3)
    return found


def pages(cluster: ConsoleCluster, count: int, times: int) -> dict[str, Any]:
    """Figures of each page, and of the map."""
    found: dict[str, Any] = {}
    paths = stops(tour(cluster.runs))
    for name, path in paths.items():
        found[name] = answers(cluster, path, count)
    if CHROMIUM is None:
        return {"pages": found, "map": None, "changes": None}
    with chromium() as browser, console_page(browser, cluster.url, cluster.token) as signed_in:
        state = signed_in.page.context.storage_state()
        for name, path in paths.items():
            seen = loads(browser, state, f"{cluster.url}/console{path}", times)
            for figure in ("paint_ms", "load_ms", "kb"):
                found[name][figure] = [one[figure] for one in seen]
        signed_in.go("/overview")
        drawn = [signed_in.page.evaluate(_MAP) for _ in range(times + 1)]
        changed = changes(cluster, signed_in, 5 * times)
    return {"pages": found, "map": drawn, "changes": changed}


def view(url: str, token: str, count: int, read: Synchronized[int]) -> None:
    """Open so many streams and count their bytes, until the process is ended."""
    where = urlsplit(url)
    request = (
        f"GET /v1/changes?follow=true HTTP/1.1\r\nHost: {where.netloc}\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    )
    ready = selectors.DefaultSelector()
    for _ in range(count):
        stream = socket.create_connection((where.hostname or "", where.port or 0))
        stream.sendall(request.encode())
        ready.register(stream, selectors.EVENT_READ, stream)
    while True:
        for key, _ in ready.select():
            got = len(key.data.recv(1 << 20))
            assert got, "a stream has ended"
            read.value += got


@contextmanager
def viewing(cluster: ConsoleCluster, count: int) -> Iterator[Callable[[], int]]:
    """So many viewers during the block, which gets a function that says how much they read."""
    read: Synchronized[int] = _SPAWN.Value("q", 0)
    process = _SPAWN.Process(target=view, args=(cluster.url, cluster.token, count, read))
    process.start()
    try:
        yield lambda: read.value
        assert process.is_alive(), "the viewers have ended"
    finally:
        process.kill()
        process.join()


def spent(cluster: ConsoleCluster, seconds: int) -> dict[str, float]:
    """The share of a core that is used for so long, and the memory afterwards."""
    began, first = time.monotonic(), cluster.cost()
    time.sleep(seconds)
    last: Cost = cluster.cost()
    share = (last.cpu_s - first.cpu_s) / (time.monotonic() - began)
    return {"cores": share, "memory_mb": last.memory_mb}


def live(cluster: ConsoleCluster, viewers: int, seconds: int) -> dict[str, Any]:
    """Gateway and console without viewers, then with them."""
    with cluster.progressing():
        time.sleep(2)
        without = spent(cluster, seconds)
        with viewing(cluster, viewers) as read:
            wait_until("rows for all viewers", lambda: read() > viewers * ROW_BYTES)
            time.sleep(2)
            first = read()
            watched = spent(cluster, seconds)
            each = (read() - first) / viewers / seconds
    return {"without": without, "with": watched, "bytes_a_viewer_and_second": each}


def measure(
    runs: int, newest: int, answers: int, loads: int, viewers: int, seconds: int
) -> dict[str, Any]:
    with scratch() as folder, console_cluster(folder, runs, newest) as cluster:
        seen = live(cluster, viewers, seconds)
        return {**pages(cluster, answers, loads), "live": seen, "viewers": viewers}


def run(context: Context) -> list[Result]:
    """The slowest and largest pages against their targets, the viewers, and each page."""
    if CHROMIUM is None:
        context.say(f"{NO_CHROMIUM}: only the server is measured")
    size = {"runs": 100_000, "newest": 10_000, "answers": 10, "loads": 3}
    if context.quick:
        size = {"runs": 10_000, "newest": 2_000, "answers": 3, "loads": 1}
    arguments = [text for name, value in size.items() for text in (f"--{name}", str(value))]
    figures = in_own_process("bench_console", *arguments, timeout_s=1200)
    found = figures["pages"]

    def worst(name: str, unit: str, of: Callable[[dict[str, Any]], float]) -> Result:
        by = sorted(found, key=lambda page: of(found[page]), reverse=True)
        note = ", ".join(f"{page} {of(found[page]):.0f}" for page in by[:4])
        return context.result(name, of(found[by[0]]), unit, note=f"of {len(found)} pages: {note}")

    failed = [f"{name} {page['status']}" for name, page in found.items() if page["status"] >= 400]
    results = [
        context.result("console_pages_failed", len(failed), "", note=", ".join(failed)),
        worst("console_server_p95_ms", "ms", lambda page: page["server_ms"]),
        worst("console_server_cpu_ms", "ms", lambda page: page["cpu_ms"]),
    ]
    if figures["map"]:
        results += [
            worst("console_paint_ms", "ms", lambda page: statistics.median(page["paint_ms"])),
            worst("console_load_ms", "ms", lambda page: statistics.median(page["load_ms"])),
            worst("console_page_kb", "KB", lambda page: max(page["kb"])),
            context.median(
                "console_map_ms", [one["ms"] for one in figures["map"]], "ms",
                note=f"{figures['map'][0]['gpus']:,} GPUs",
            ),
            context.median("console_change_ms", figures["changes"], "ms"),
        ]  # fmt: skip
    return results + costs(context, figures) + each_page(context, found)


def costs(context: Context, figures: dict[str, Any]) -> list[Result]:
    """Gateway and console, with the viewers and without."""
    without, watched = figures["live"]["without"], figures["live"]["with"]
    each = figures["live"]["bytes_a_viewer_and_second"] / 1000
    more_mb = watched["memory_mb"] - without["memory_mb"]
    note = f"{figures['viewers']} viewers, {each:.0f} KB a second each"
    return [
        context.result("console_unwatched_cores", without["cores"], "cores"),
        context.result("console_viewers_cores", watched["cores"], "cores", note=note),
        context.result("console_unwatched_mb", without["memory_mb"], "MB"),
        context.result("console_viewers_mb", watched["memory_mb"], "MB"),
        context.result("console_viewers_more_mb", more_mb, "MB"),
    ]


def each_page(context: Context, found: dict[str, Any]) -> list[Result]:
    """One figure a page: its load, or the server's time where there is no browser."""
    results = []
    for name, page in found.items():
        figure, note = f"console_{name}".replace("-", "_"), f"server P95 {page['server_ms']:.0f} ms"
        note += f", its CPU {page['cpu_ms']:.0f} ms"
        if "load_ms" not in page:
            results.append(context.result(f"{figure}_server_ms", page["server_ms"], "ms"))
            continue
        note += f", first paint {statistics.median(page['paint_ms']):.0f} ms"
        note += f", {max(page['kb']):.0f} KB"
        results.append(context.median(f"{figure}_load_ms", page["load_ms"], "ms", note=note))
    return results


if __name__ == "__main__":
    as_program(measure, runs=100_000, newest=10_000, answers=10, loads=3, viewers=200, seconds=20)
