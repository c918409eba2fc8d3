"""`PYTHONPATH=tests python -m load`: a simulated cluster of 10,000 nodes on a real platform.

500 jobs run, with points and lines; viewers and REST ask; then each storm comes once. The table
compares with goals. Exit codes: 0 all were met, 1 some were not.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import clickhouse_connect

from gangline.local.client import Client
from gangline.local.platform import Platform, PlatformSettings
from gangline.local.stop_signals import stop_signals_interrupt
from gangline_service.vitals import EVERY_S
from load.fleet import FleetSettings
from load.readers import Readers
from load.storms import STORMS
from load.world import World

TEAMS = "teams:\n  - {team: default, gpu_limit: 1000000, gpu_guarantee: 0, job_limit: 100000}\n"
BEAT_S = 5.0
LAG_S = 60.0
say = partial(print, flush=True)


@dataclass
class Row:
    """A line of the table. `goal` is the most that is allowed; None: only shown."""

    name: str
    value: float
    unit: str
    goal: float | None = None

    @property
    def met(self) -> bool:
        """Whether the goal was met."""
        return self.goal is None or self.value <= self.goal


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
            heartbeat_interval_s=BEAT_S, heartbeat_timeout_s=60.0,
        )  # fmt: skip
        with Platform(settings) as platform:
            rows = run(options, platform, platform.start())
    for row in rows:
        goal = "" if row.goal is None else f"{row.goal:>10,.10g}"
        result = "" if row.met else "MISSED"
        say(f"{row.name:44} {row.value:>14,.2f} {row.unit:9} {goal:10} {result}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    return 0 if all(row.met for row in rows) else 1


def run(options: argparse.Namespace, platform: Platform, client: Client) -> list[Row]:
    """All of it."""
    world = World(platform, client, fleets(options, client.bootstrap_servers), options.jobs)
    readers = Readers(client, options.viewers, options.calls)
    storms = [] if options.calm else options.storm or list(STORMS)
    windows: dict[str, tuple[float, float]] = {}
    with world:
        joined_s = world.join()
        say(f"{options.nodes} nodes joined after {joined_s:.1f} s")
        world.begin_work()
        time.sleep(30.0)  # until the jobs run
        readers.start()
        before, cpu, began = world.memory_mb(), world.cpu_s(), time.monotonic()
        quiet_s = options.minutes * 60 * (0.5 if storms else 1.0)
        time.sleep(quiet_s)
        windows["quiet"] = (began, time.monotonic())
        used = {
            name: 100 * (now - cpu.get(name, 0.0)) / quiet_s for name, now in world.cpu_s().items()
        }
        after = world.memory_mb()
        for storm in storms:
            at = time.monotonic()
            STORMS[storm](world)
            say(f"{storm}: over after {time.monotonic() - at:.1f} s")
            time.sleep(options.minutes * 60 * 0.5 / len(storms))
            windows[storm] = (at, time.monotonic())
        readers.stop()
        world.pause_work()
        world.order("quiet")
        time.sleep(2 * BEAT_S)
        accounts = world.end_fleet()
        lag_s = caught_up(world)
        return [
            Row("all nodes joined", joined_s, "s", 30.0),
            *latencies(world, windows),
            Row("REST P95, quiet", p(readers.waits_s, windows["quiet"], 0.95) * 1e3, "ms"),
            Row("REST requests that failed, storms too", readers.failures, ""),
            Row("messages to viewers", readers.messages, ""),
            *([Row("all re-joined", world.rejoined_s, "s", 30.0)] if world.rejoined_s else []),
            Row("healthy nodes suspected", len(world.healthy_suspected()), "nodes", 0),
            Row("lag 0 after the load's end", lag_s, "s", LAG_S),
            *memory(before, after),
            *(Row(f"CPU of {name}", share, "%") for name, share in sorted(used.items())),
            *account(world, client, accounts),
        ]


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


def latencies(world: World, windows: dict[str, tuple[float, float]]) -> list[Row]:
    """Of submissions: P99 in each window."""
    rows = []
    for name, window in windows.items():
        goal = None if name == "broker away" else 200.0 if name == "quiet" else 2000.0
        shown = f"submit -> allocated P99, {name}"
        rows.append(Row(shown, p(world.seen.latencies, window, 0.99) * 1e3, "ms", goal))
    return rows


def p(found: Sequence[tuple[float, float]], window: tuple[float, float], share: float) -> float:
    """A percentile of the values in a window of time; infinite without any, which misses goals."""
    values = [value for at, value in found if window[0] <= at < window[1]]
    if len(values) < 2:
        return max(values, default=math.inf)
    return statistics.quantiles(values, n=1000, method="inclusive")[int(share * 1000) - 1]


def memory(before: dict[str, float], after: dict[str, float]) -> list[Row]:
    """How it grew in the quiet time, of those that grew most."""
    grew = {name: after[name] - size for name, size in before.items() if name in after}
    most = sorted(grew, key=grew.__getitem__, reverse=True)[:4]
    return [
        Row("memory of the platform", sum(after.values()), "MB"),
        *(Row(f"memory of {name}: grew", grew[name], "MB") for name in most),
    ]


def account(world: World, client: Client, accounts: Sequence[dict[str, object]]) -> list[Row]:
    """The database against what the fleet sent and the bus acknowledged."""
    sent = {
        name: sum(int(item[name]) for item in accounts)  # type: ignore[call-overload]
        for name in ("beats", "points", "lines", "refused", "started")
    }
    host, port = client.clickhouse_url.removeprefix("http://").split(":")
    database = clickhouse_connect.get_client(
        host=host, port=int(port), password=client.token, database="gangline"
    )

    def count(table: str) -> int:
        return int(database.query(f"SELECT count() FROM {table}").result_rows[0][0])

    late = [max(item["late_s"], default=0.0) for item in accounts]  # type: ignore[call-overload]
    twice = sum(1 for ends in world.seen.ends.values() if ends > 1)
    return [
        Row("the fleet's own lateness, worst", max(late), "s", 0.5),
        Row("beats sent", sent["beats"], ""),
        Row("beats lost or doubled", abs(count("heartbeats") - sent["beats"]), "", 0),
        Row("points sent", sent["points"], ""),
        Row("points lost or doubled", abs(count("steps") - sent["points"]), "", 0),
        Row("lines sent", sent["lines"], ""),
        Row("lines lost or doubled", abs(count("logs") - sent["lines"]), "", 0),
        Row("records that the bus refused", sent["refused"], "", 0),
        Row("jobs submitted", world.submitted, ""),
        Row("jobs ended twice", twice, "", 0),
        Row("probes that got no GPU", world.waiting_probes, "", 0),
    ]


def caught_up(world: World) -> float:
    """Seconds until no process has anything to read; their first reports are of earlier."""
    began = time.monotonic()
    time.sleep(EVERY_S)
    while world.unread() and time.monotonic() - began < 5 * LAG_S:
        time.sleep(1.0)
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
