"""What a run of the load found, as rows with goals."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import clickhouse_connect

from gangline.local.client import Client
from load.world import World

Window = tuple[float, float]
"""When something began and ended (monotonic)."""
QUIET = "quiet"
UNBOUNDED = frozenset({"broker away"})
"""Storms in which nothing can be allocated for longer than the goal."""
QUIET_MS, STORM_MS = 200.0, 2000.0
FLEET_LATE_S = 0.5
GATHERED_S = 30.0
"""The tracker gathers rows for some seconds before it writes them."""


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

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"{self.goal:>10,.10g}"
        result = "" if self.met else "MISSED"
        return f"{self.name:44} {self.value:>14,.2f} {self.unit:9} {goal:10} {result}".rstrip()


def latency(world: World, name: str, window: Window) -> Row:
    """Of submissions in a storm, or in the quiet time: P99."""
    goal = None if name in UNBOUNDED else QUIET_MS if name == QUIET else STORM_MS
    value = p(world.seen.latencies, window, 0.99) * 1e3
    return Row(f"submit -> allocated P99, {name}", value, "ms", goal)


def p(found: Sequence[Sequence[float]], window: Window, share: float) -> float:
    """A percentile of the values in a window of time; infinite without any, which misses goals."""
    values = [value for at, value in found if window[0] <= at < window[1]]
    if len(values) < 2:
        return max(values, default=math.inf)
    return statistics.quantiles(values, n=1000, method="inclusive")[int(share * 1000) - 1]


def memory(before: Mapping[str, float], after: Mapping[str, float]) -> list[Row]:
    """How it grew in the quiet time, of those that grew most."""
    grew = {name: after[name] - size for name, size in before.items() if name in after}
    most = sorted(grew, key=grew.__getitem__, reverse=True)[:4]
    return [
        Row("memory of the platform", sum(after.values()), "MB"),
        *(Row(f"memory of {name}: grew", grew[name], "MB") for name in most),
    ]


def cpu(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> Iterator[Row]:
    """The share of a core that each process used."""
    for name, used in sorted(after.items()):
        yield Row(f"CPU of {name}", 100 * (used - before.get(name, 0.0)) / seconds, "%")


def account(world: World, client: Client, accounts: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The database against what the fleet sent and the bus acknowledged."""
    sent = {
        name: sum(int(item[name]) for item in accounts)
        for name in ("beats", "points", "lines", "refused", "started")
    }
    host, port = client.clickhouse_url.removeprefix("http://").split(":")
    database = clickhouse_connect.get_client(
        host=host, port=int(port), password=client.token, database="gangline"
    )

    def wrong(table: str, wanted: int) -> int:
        """Rows that are lost or doubled once the tracker has written what it had gathered."""
        deadline = time.monotonic() + GATHERED_S
        while True:
            found = int(database.query(f"SELECT count() FROM {table}").result_rows[0][0])
            if found >= wanted or time.monotonic() > deadline:
                return abs(found - wanted)
            time.sleep(1.0)

    late = [max(item["late_s"], default=0.0) for item in accounts]
    twice = sum(1 for ends in world.seen.ends.values() if ends > 1)
    return [
        Row("the fleet's own lateness, worst", max(late), "s", FLEET_LATE_S),
        Row("CPU of the fleet", sum(item["cpu_s"] for item in accounts), "s"),
        Row("beats sent", sent["beats"], ""),
        Row("beats lost or doubled", wrong("heartbeats", sent["beats"]), "", 0),
        Row("points sent", sent["points"], ""),
        Row("points lost or doubled", wrong("steps", sent["points"]), "", 0),
        Row("lines sent", sent["lines"], ""),
        Row("lines lost or doubled", wrong("logs", sent["lines"]), "", 0),
        Row("records that the bus refused", sent["refused"], "", 0),
        Row("jobs submitted", world.submitted, ""),
        Row("gangs started", sent["started"], ""),
        Row("jobs ended twice", twice, "", 0),
        Row("probes that got no GPU", world.waiting_probes, "", 0),
    ]
