"""Bad minutes of a large cluster, each once. A storm returns once what it did is over."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from load.nodes import NODES_PER_RACK
from load.world import World

AWAY_S = 30.0
SLOW_S = 20.0
READY_S = 300.0


def services_killed(world: World) -> None:
    """Kill -9 of all services at once; Kafka lives."""
    for name, pid in _pids(world).items():
        if name != "kafka":
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    world.platform.supervisor.wait_ready(READY_S)


def broker_away(world: World) -> None:
    """The broker does not answer for 30 s."""
    with _stopped(world, "kafka"):
        time.sleep(AWAY_S)
    world.platform.supervisor.wait_ready(READY_S)


def all_rejoin(world: World) -> None:
    """All agents start from scratch at once; their gangs start again."""
    before, began = world.seen.admissions, time.monotonic()
    world.order("renew")
    world.rejoined_s = world.wait_admissions(before, began)


def rack_gone(world: World) -> None:
    """16 nodes are silent from now on."""
    world.lost = range(NODES_PER_RACK)
    world.order(f"lose 0 {NODES_PER_RACK}")
    deadline = time.monotonic() + READY_S
    while missing := world.gone - world.seen.silent:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing)} of {NODES_PER_RACK} nodes did not fail in time")
        time.sleep(0.2)


def slow_tracker(world: World) -> None:
    """The tracker stands still for 20 s, and must catch up."""
    with _stopped(world, "tracker-0"):
        time.sleep(SLOW_S)


def takeover(world: World) -> None:
    """Each scheduler ends once, so the leader among them does."""
    for name in ("scheduler-0", "scheduler-1"):
        os.kill(_pids(world)[name], signal.SIGKILL)
        time.sleep(1.0)
        world.platform.supervisor.wait_ready(READY_S)


STORMS: Mapping[str, Callable[[World], None]] = {
    "services killed": services_killed,
    "broker away": broker_away,
    "all re-join": all_rejoin,
    "rack gone": rack_gone,
    "slow tracker": slow_tracker,
    "takeover": takeover,
}


@contextmanager
def _stopped(world: World, name: str) -> Iterator[None]:
    pid = _pids(world)[name]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _pids(world: World) -> dict[str, int]:
    rows = world.platform.supervisor.status()
    return {row.name: row.pid for row in rows if row.pid is not None}
