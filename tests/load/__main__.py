"""`PYTHONPATH=tests python -m load`: a simulated cluster of 10,000 nodes on a real platform.

500 jobs run, with points and lines; viewers and REST ask; then each storm comes once. The table
compares with goals. Exit codes: 0 all were met, 1 some were not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from gangline.local.client import Client
from gangline.local.platform import Platform, PlatformSettings
from gangline.local.process_model import SupervisorError
from gangline.local.stop_signals import stop_signals_interrupt
from gangline_service.vitals import EVERY_S
from load.fleet import FleetSettings
from load.processes import LoadProcess
from load.readers import ReaderSettings
from load.storms import READY_S, STORMS
from load.table import QUIET, Row, account, cpu, latency, memory, p
from load.world import World

TEAMS = "teams:\n  - {team: default, gpu_limit: 1000000, gpu_guarantee: 0, job_limit: 100000}\n"
BEAT_S = 5.0
LAG_S = 60.0
JOBS_BEGIN_S = 300.0
say = partial(print, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m load", description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--fleets", type=int, default=2, help="processes of the fleet")
    parser.add_argument("--jobs", type=int, default=500, help="that run at once")
    parser.add_argument("--points", type=int, default=200_000, help="a second, of all jobs")
    parser.add_argument("--lines", type=int, default=2_000, help="of logs a second, of all jobs")
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--calls", type=float, default=20.0, help="of REST a second")
    parser.add_argument("--minutes", type=float, default=10.0, help="quiet ones among them: half")
    parser.add_argument("--storm", action="append", choices=STORMS, help="only these; none: all")
    parser.add_argument("--calm", action="store_true", help="no storm")
    parser.add_argument("--json", type=Path, help="write the table there")
    parser.add_argument("--logs", type=Path, help="copy the logs of all processes there")
    return parser.parse_args(arguments)


def main() -> int:
    """The exit code."""
    options = parse()
    with stop_signals_interrupt(), tempfile.TemporaryDirectory(prefix="gangline-load-") as name:
        folder = Path(name)
        teams = folder / "teams.yaml"
        teams.write_text(TEAMS)
        settings = PlatformSettings(
            data_dir=folder / "platform", nodes=0, teams_file=teams, schedulers=2,
            heartbeat_interval_s=BEAT_S, heartbeat_timeout_s=60.0, ready_timeout_s=READY_S,
        )  # fmt: skip
        try:
            with Platform(settings) as platform:
                rows = Run(options, platform, platform.start()).all()
        finally:
            if options.logs:
                shutil.copytree(settings.data_dir / "logs", options.logs, dirs_exist_ok=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    missed = [row for row in rows if not row.met]
    say(f"{len(missed)} goals missed" if missed else "all goals met")
    for row in missed:
        say(row)
    return 1 if missed else 0


class Run:
    """The load on a platform that is up: join, quiet time, storms, account."""

    def __init__(self, options: argparse.Namespace, platform: Platform, client: Client) -> None:
        self._options = options
        self._client = client
        self._fleets = fleets(options, client.bootstrap_servers)
        self._world = World(platform, client, self._fleets, options.jobs)
        self._storms = [] if options.calm else options.storm or list(STORMS)
        self._quiet_window = (0.0, 0.0)
        self._rows: list[Row] = []

    def all(self) -> list[Row]:
        """The table. Each row is shown once it is known."""
        with self._world as world:
            self._show(Row("all nodes joined", world.join(), "s", 30.0))
            world.begin_work()
            self._show(Row("jobs began", world.almost_all_began(JOBS_BEGIN_S), "s"))
            readers = LoadProcess("load.readers", self._reader_settings())
            try:
                self._quiet()
                for storm in self._storms:
                    self._storm(storm)
                seen = readers.end()
            finally:
                readers.kill()
            self._end(seen)
        return self._rows

    def _quiet(self) -> None:
        world, began = self._world, time.monotonic()
        before, used = world.memory_mb(), world.cpu_s()
        time.sleep(self._options.minutes * 60 * (0.5 if self._storms else 1.0))
        ended = time.monotonic()
        self._quiet_window = (began, ended)
        half = p(world.seen.latencies, self._quiet_window, 0.5) * 1e3
        self._show(Row("submit -> allocated P50, quiet", half, "ms"))
        self._show(latency(world, QUIET, self._quiet_window))
        self._show(*cpu(used, world.cpu_s(), ended - began))
        self._show(*memory(before, world.memory_mb()))
        self._show(Row("load of the machine", os.getloadavg()[0], "processes"))

    def _storm(self, name: str) -> None:
        began = time.monotonic()
        try:
            STORMS[name](self._world)
        except (TimeoutError, SupervisorError) as error:
            say(f"{name}: {error}")
            self._show(Row(f"{name}: is not over", 1, "", 0))
        over = Row(f"{name}: over", time.monotonic() - began, "s")
        time.sleep(self._options.minutes * 60 * 0.5 / len(self._storms))
        self._show(over, latency(self._world, name, (began, time.monotonic())))

    def _end(self, seen: dict[str, Any]) -> None:
        world = self._world
        world.pause_work()
        world.order("quiet")
        time.sleep(2 * BEAT_S)
        accounts = world.end_fleet()
        if world.rejoined_s:
            self._show(Row("all re-joined", world.rejoined_s, "s", 30.0))
        self._show(
            Row("lag 0 after the load's end", caught_up(world), "s", LAG_S),
            Row("REST P95, quiet", p(seen["waits_s"], self._quiet_window, 0.95) * 1e3, "ms"),
            Row("REST requests that failed, storms too", seen["failures"], ""),
            Row("messages to viewers", seen["messages"], ""),
            Row("healthy nodes suspected", len(world.healthy_suspected()), "nodes", 0),
            *account(world, self._client, accounts),
        )

    def _reader_settings(self) -> ReaderSettings:
        options, client = self._options, self._client
        return ReaderSettings(client.url, client.token, options.viewers, options.calls)

    def _show(self, *rows: Row) -> None:
        self._rows += rows
        for row in rows:
            say(row)


def fleets(options: argparse.Namespace, bootstrap: str) -> list[FleetSettings]:
    """The processes of the fleet, with equal shares of the nodes."""
    bounds = [options.nodes * n // options.fleets for n in range(options.fleets + 1)]
    return [
        FleetSettings(
            bootstrap, first, last, BEAT_S,
            options.points // options.jobs, options.lines // options.jobs,
        )
        for first, last in pairwise(bounds)
    ]  # fmt: skip


def caught_up(world: World) -> float:
    """Seconds until no process has anything to read; their first reports are of earlier."""
    began = time.monotonic()
    time.sleep(EVERY_S)
    while world.unread() and time.monotonic() - began < 5 * LAG_S:
        time.sleep(1.0)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
