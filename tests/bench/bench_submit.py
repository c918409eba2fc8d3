"""How fast a submission becomes an allocation, one at a time and in a burst.

- One at a time, each after the end of the one before: from the produce call of `job.submitted` to
  the arrival of `gang.allocated` at a consumer. It passes requests -> quota -> scheduler: two
  transactions.
- A burst: all submissions at once; drained when the scheduler has queued the last one. Counted
  from the log: each is admitted once and queued once.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter

from harness import Context, Result
from platform_harness import NODES, SLOTS, Submitter, on_the_bus, running_platform

from gangline_schemas.catalog import Topic
from support.harnesses.log_watch import LogWatch, Seen

WARM_UP = 10
BURST_TIMEOUT_S = 120.0


class FreeSlots:
    """Waits until a slot is free, as the scheduler's log tells."""

    def __init__(self, watch: LogWatch) -> None:
        self._watch = watch
        self._at = 0
        self._held = 0

    def wait(self, free: int) -> None:
        deadline = time.monotonic() + BURST_TIMEOUT_S
        while self._count() > NODES * SLOTS - free:
            if time.monotonic() > deadline:
                raise TimeoutError("no slot became free")
            self._watch.poll(0.05)

    def _count(self) -> int:
        for seen in self._watch.seen[self._at :]:
            self._held += (seen.type == "gang.allocated") - (seen.type == "gang.released")
        self._at = len(self._watch.seen)
        return self._held


def one_ms(watch: LogWatch, submitter: Submitter) -> float:
    """Submit one job; milliseconds until its allocation is read."""
    after = len(watch.seen)
    started = time.perf_counter()
    job_id = submitter.submit_short("one")

    def allocated(seen: Seen) -> bool:
        return seen.type == "gang.allocated" and seen.data.job_id == job_id

    watch.wait_for(allocated, after=after, timeout_s=30)
    return (time.perf_counter() - started) * 1e3


def one_at_a_time(count: int) -> list[float]:
    with (
        running_platform() as platform,
        on_the_bus(platform, (Topic.SCHEDULING,)) as (watch, submitter),
    ):
        slots = FreeSlots(watch)
        taken = []
        for _ in range(WARM_UP + count):
            slots.wait(free=NODES * SLOTS)
            taken.append(one_ms(watch, submitter))
        return taken[WARM_UP:]


def burst(count: int) -> tuple[float, float, int]:
    """Submit so many at once.

    Seconds until the last was admitted and until it was queued, and how many were lost or twice.
    """
    topics = (Topic.QUOTA, Topic.SCHEDULING)
    with (
        running_platform() as platform,
        on_the_bus(platform, topics) as (watch, submitter),
    ):
        one_ms(watch, submitter)
        admitted: Counter[str] = Counter()
        queued: Counter[str] = Counter()
        at = len(watch.seen)
        started = time.perf_counter()
        sent = [submitter.submit_short("burst") for _ in range(count)]
        admitted_s = queued_s = 0.0
        while len(queued) < count and time.perf_counter() - started < BURST_TIMEOUT_S:
            watch.poll(0.1)
            for seen in watch.seen[at:]:
                if seen.type == "job.admitted":
                    admitted[seen.data.job_id] += 1
                    admitted_s = time.perf_counter() - started
                elif seen.type == "job.queued":
                    queued[seen.data.job_id] += 1
                    queued_s = time.perf_counter() - started
            at = len(watch.seen)
        wrong = sum(admitted[job_id] != 1 or queued[job_id] != 1 for job_id in sent)
        return admitted_s, queued_s, wrong


def run(context: Context) -> list[Result]:
    """One at a time, then the burst."""
    taken = one_at_a_time(context.repeats(200, 40))
    centiles = statistics.quantiles(taken, n=100, method="inclusive")
    spread = f"n={len(taken)}, {min(taken):.0f}..{max(taken):.0f} ms"
    context.say(f"submit -> gang.allocated: {spread}")
    count = 1000
    admitted_s, queued_s, wrong = burst(count)
    return [
        context.result("submit_allocated_p50_ms", centiles[49], "ms", note=spread),
        context.result("submit_allocated_p99_ms", centiles[98], "ms", note=spread),
        context.result("burst_admitted_s", admitted_s, "s", note=f"{count} submissions"),
        context.result("burst_drained_s", queued_s, "s", note=f"{count} submissions"),
        context.result("burst_lost", wrong, "jobs", note="not admitted and queued exactly once"),
    ]
