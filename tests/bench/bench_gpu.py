"""The whole platform on this machine's first GPU: how well a job uses it, and restarts.

One rank trains 567 M parameters: the model FLOP utilization of its steps, without saves and with a
save each ten steps. Then a rank of the demo's model is killed, and of the large one: from the
signal to the first step of the next attempt, with standbys and with cold starts.

A machine without a GPU has no figures.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from gang_harness import TOPICS, Gang
from harness import Context, Result
from models import GPU, SMALL
from platform_harness import Submitter, on_the_bus, running_platform

from gangline_worker.agent.host.inventory import find_gpus
from support.harnesses.log_watch import LogWatch

SAVE_EVERY = 10
SETTLED_STEPS = 5
STEPS = 40
WARM = ("standby", "off")
READY_S = 120.0


def steps_of(gang: Gang, name: str) -> list[float]:
    """A metric of all steps of the first attempt that have come."""
    batches = [s.data for s in gang.watch.of("worker.step") if s.data.run_id == gang.job]
    found: list[float] = []
    for batch in batches:
        if batch.attempt == 1:
            found += [value for value in batch.metrics.get(name, ()) if value is not None]
    return found


def trained(watch: LogWatch, submitter: Submitter, name: str, every: int) -> dict[str, list[float]]:
    """What the steps of a job report that saves each so many steps (0: never)."""
    settings: dict[str, Any] = {**GPU, "steps": STEPS, "checkpoint_every_steps": every}
    gang = Gang.submit(watch, submitter, name, memory_gb=8, gpus=1, **settings)
    watch.wait_state(gang.job, "succeeded")
    watch.settle()
    return {name: steps_of(gang, name) for name in ("mfu", "tokens_per_s", "step_s")}


def parts(gang: Gang, attempt: int, at: float) -> str:
    """When what came of a kill happened, in seconds after it."""
    after = {}
    for seen in gang.watch.seen:
        of = getattr(seen.data, "job_id", None) or getattr(seen.data, "run_id", None)
        if of != gang.job:
            continue
        number = getattr(seen.data, "attempt", 0)
        if seen.type in {"worker.exited", "gang.failed"} and number == attempt:
            after[seen.type] = seen.envelope.time.timestamp() - at
        if seen.type in {"gang.allocated", "worker.started"} and number == attempt + 1:
            after[seen.type] = seen.envelope.time.timestamp() - at
        if seen.type == "worker.log" and number == attempt + 1:
            for line in seen.data.lines:
                after.setdefault(line.text[:60], line.time_ms / 1e3 - at)
    return "; ".join(f"{name} {seconds:.2f}" for name, seconds in after.items() if seconds > 0)


def wait_standby(log: Path, watch: LogWatch) -> None:
    """Until the next rank can be a standby: each rank before it was one, so one more is ready."""
    ends = time.monotonic() + READY_S
    while log.read_text().count('"standby.ready"') <= len(watch.of("worker.started")):
        if time.monotonic() > ends:
            raise RuntimeError(f"no standby was ready within {READY_S:.0f} s; see {log}")
        watch.poll()


def restarts(
    context: Context, gang: Gang, name: str, wait_ready: Callable[[], None]
) -> list[float]:
    """Seconds from `kill -9` of a rank to the first step of the next attempt."""
    taken = []
    for attempt in range(1, context.repeats(3) + 1):
        gang.wait_settled(attempt, SETTLED_STEPS)
        wait_ready()
        at = gang.signal(attempt, 0, signal.SIGKILL)
        taken.append(gang.first_step_s(attempt + 1) - at)
        context.say(f"{name}: first new step after {taken[-1]:.2f} s: {parts(gang, attempt, at)}")
    gang.wait_settled(attempt + 1, 1)
    gang.end()
    return taken


def run(context: Context) -> list[Result]:
    """Utilization and restarts; nothing where there is no GPU."""
    gpus = find_gpus()
    if not gpus:
        context.say("this machine has no GPU")
        return []
    results = []
    small = {**SMALL, "checkpoint_every_steps": 50, "log_every_steps": 20}
    large = {**GPU, "checkpoint_every_steps": SAVE_EVERY}
    for warm in WARM:
        environment = {"GANGLINE_WARM_START": warm}
        with (
            running_platform(nodes=1, slots=None, environment=environment) as platform,
            on_the_bus(platform, TOPICS) as (watch, submitter),
        ):
            log = platform.data_dir / "logs" / "node-0.log"
            wait_ready = partial(wait_standby, log, watch) if warm == "standby" else lambda: None
            if warm == "standby":
                wait_ready()
                quiet = trained(watch, submitter, "quiet", 0)
                wait_ready()
                saving = trained(watch, submitter, "saving", SAVE_EVERY)
                note = f"{gpus[0].model}, {median(quiet['tokens_per_s']):,.0f} tokens/s"
                results.append(context.median("gpu_mfu", quiet["mfu"][SAVE_EVERY:], "", note=note))
                context.say(f"MFU {median(quiet['mfu'][SAVE_EVERY:]):.3f}, {note}")
                ratio = sum(saving["step_s"][SAVE_EVERY:]) / sum(quiet["step_s"][SAVE_EVERY:])
                context.say(f"with saves {ratio:.3f}")
                note = f"a save of 6.8 GB each {SAVE_EVERY} steps"
                results.append(context.result("gpu_saving_ratio", ratio, "x", note=note))
            for size, settings in (("small", small), ("large", large)):
                name = f"{size}-{warm}"
                wait_ready()
                gang = Gang.submit(watch, submitter, name, memory_gb=8, gpus=1, **settings)
                taken = restarts(context, gang, name, wait_ready)
                results.append(context.median(f"gpu_restart_{size}_{warm}_s", taken, "s"))
    return results
