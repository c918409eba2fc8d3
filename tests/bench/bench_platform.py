"""What the platform costs: its start, and standing idle.

- Start: until every process is ready, with Java's cache and the jars there already. Warm is a
  start over a data directory that was used before; the first one over an empty one is reported too.
- Idle: CPU time of all its processes over 30 s, after 20 s of settling, in percent of one core;
  memory as the sum of proportional set sizes. Node agents (with their zygotes) are counted apart:
  in a cluster they run on the nodes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
from harness import Context, Result, scratch
from platform_harness import running_platform

from gangline.local.platform import Platform
from support.fixtures.platform import RunningPlatform, start_platform

SETTLE_S, WINDOW_S = 20.0, 30.0
MB = 1e6


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds so far and memory now of one supervised process with its children."""

    cpu_s: float
    rss_mb: float
    pss_mb: float


def cost(pid: int) -> Cost:
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    cpu_s = rss = pss = 0.0
    for process in family:
        try:
            times, memory = process.cpu_times(), process.memory_full_info()
        except psutil.NoSuchProcess:
            continue
        cpu_s += times.user + times.system
        rss += memory.rss
        pss += memory.pss
    return Cost(cpu_s, rss / MB, pss / MB)


def costs(platform: RunningPlatform) -> dict[str, Cost]:
    """The cost of each supervised process by its name."""
    rows = platform.platform.supervisor.status()
    return {row.name: cost(row.pid) for row in rows if row.pid is not None}


def starts_s(count: int) -> tuple[float, list[float]]:
    """Seconds of the first start over an empty directory, and of `count` more over the same."""
    with scratch() as folder:
        taken = []
        for _ in range(1 + count):
            platform: Platform
            platform, _ = start_platform(folder / "data")
            with platform:
                started = time.perf_counter()
                platform.start()
                taken.append(time.perf_counter() - started)
    return taken[0], taken[1:]


def idle(context: Context) -> list[Result]:
    with running_platform() as platform:
        time.sleep(SETTLE_S)
        before, started = costs(platform), time.perf_counter()
        time.sleep(WINDOW_S)
        after, window_s = costs(platform), time.perf_counter() - started
    percent = {
        name: (after[name].cpu_s - before[name].cpu_s) / window_s * 100 for name in sorted(after)
    }
    agents = {name for name in after if name.startswith("node-")}
    core = after.keys() - agents
    for name in sorted(after):
        context.say(f"idle {name}: {percent[name]:.1f} % CPU, {after[name].pss_mb:.0f} MB")
    most = sorted(core, key=lambda name: -percent[name])[:3]
    note = ", ".join(f"{name} {percent[name]:.1f}" for name in most)
    rss = sum(after[name].rss_mb for name in core)
    return [
        context.result("idle_cpu_percent", sum(percent[n] for n in core), "% of a core", note=note),
        context.result("idle_cpu_percent_with_agents", sum(percent.values()), "% of a core"),
        context.result(
            "idle_memory_mb", sum(after[n].pss_mb for n in core), "MB", note=f"RSS {rss:.0f} MB"
        ),
        context.result("idle_memory_mb_with_agents", sum(c.pss_mb for c in after.values()), "MB"),
    ]


def run(context: Context) -> list[Result]:
    """Starts, then standing idle."""
    first, warm = starts_s(context.repeats(3))
    context.say(f"start: {first:.1f} s, then {', '.join(f'{s:.1f}' for s in warm)} s")
    return [
        context.median("start_warm_s", warm, "s"),
        context.result("start_empty_directory_s", first, "s"),
        *idle(context),
    ]
