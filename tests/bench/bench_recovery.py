"""From kill -9 to the next step, through the whole platform.

- A rank is killed: from the signal to the arrival of the first `worker.step` of the next attempt.
  It contains the agent's notice, the fault manager's verdict, the scheduler's allocation, the new
  ranks' start with torch, the load of the checkpoint, one step, and the report's way.
- The broker is killed: a job is submitted while it is away; from the signal to the arrival of
  quota's decision on it, and of its allocation. It contains the supervisor's restart of Java, the
  log recovery, and the services' return: those that were in a transaction restart.
"""

from __future__ import annotations

import os
import signal
import time

from harness import Context, Result
from platform_harness import Submitter, on_the_bus, running_platform

from gangline_schemas.catalog import Topic
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import LogWatch, Seen

STEPS = 100_000  # more than it gets to: it is cancelled
CALM_S = 5.0


def rank_kill_s(watch: LogWatch, submitter: Submitter) -> tuple[float, float]:
    """Kill a rank of a fresh job that has a checkpoint.

    Seconds until the first rank of its next attempt is started, and until that attempt steps.
    """
    job_id = submitter.submit("killed", hyperparameters={"steps": STEPS, "strategy": "fsdp"})

    def of_job(kind: str, seen: Seen) -> bool:
        return seen.type == kind and getattr(seen.data, "job_id", None) == job_id

    watch.wait_for(lambda seen: of_job("checkpoint.committed", seen))
    victim = next(s.data.pid for s in watch.of("worker.started", job_id) if s.data.rank == 1)
    after = len(watch.seen)
    started = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    watch.wait_for(lambda s: of_job("worker.started", s) and s.data.attempt == 2, after=after)
    restarted_s = time.perf_counter() - started
    watch.wait_for(
        lambda s: s.type == "worker.step" and s.data.run_id == job_id and s.data.attempt == 2,
        after=after,
    )
    taken = time.perf_counter() - started
    submitter.cancel(job_id)
    watch.wait_state(job_id, "cancelled", "succeeded", "failed")
    return restarted_s, taken


def broker_kill_s(
    platform: RunningPlatform, watch: LogWatch, submitter: Submitter
) -> tuple[float, float]:
    """Kill the broker; seconds until a job submitted meanwhile is admitted, and allocated."""
    before = platform.pid("kafka")
    after = len(watch.seen)
    started = time.perf_counter()
    os.kill(before, signal.SIGKILL)
    job_id = submitter.submit_short("meanwhile")
    arrived = {}
    for kind in ("job.admitted", "gang.allocated"):
        watch.wait_for(
            lambda s, kind=kind: s.type == kind and s.data.job_id == job_id,  # type: ignore[misc]
            after=after,
        )
        arrived[kind] = time.perf_counter() - started
    watch.wait_state(job_id, "succeeded", "failed")
    platform.platform.supervisor.wait_ready(60)
    calm_until = time.monotonic() + CALM_S
    while time.monotonic() < calm_until:
        watch.poll(0.5)
    return arrived["job.admitted"], arrived["gang.allocated"]


def run(context: Context) -> list[Result]:
    """Both kills, some times each, on one platform."""
    topics = tuple(topic for topic in Topic if topic is not Topic.HEARTBEATS)
    with (
        running_platform() as platform,
        on_the_bus(platform, topics) as (watch, submitter),
    ):
        ranks = []
        for _ in range(context.repeats(3)):
            ranks.append(rank_kill_s(watch, submitter))
            context.say(f"kill -9 of a rank -> first new step: {ranks[-1][1]:.2f} s")
        brokers = []
        for _ in range(context.repeats(3)):
            brokers.append(broker_kill_s(platform, watch, submitter))
            context.say(f"kill -9 of the broker -> decision: {brokers[-1][0]:.2f} s")
        watch.assert_sound()
    return [
        context.median("rank_kill_to_restart_s", [restarted for restarted, _ in ranks], "s"),
        context.median("rank_kill_to_step_s", [step for _, step in ranks], "s"),
        context.median("broker_kill_to_decision_s", [d for d, _ in brokers], "s"),
        context.median("broker_kill_to_allocation_s", [a for _, a in brokers], "s"),
    ]
