"""kill -9 of the leading scheduler under load, with a standby: when are decisions made again.

From the signal to the time of the first event that a later writer (a higher epoch) put into the
scheduler's log, while submissions come all the time. Either may be that writer: the standby, once
the leader's session is over, or the leader's successor, which the supervisor starts at once and
which keeps the leader's membership. It contains the fence, the fold of the log and the first cycle.
At the end each submission must stand in the log once.
"""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from pathlib import Path

from harness import Context, Result
from platform_harness import Submitter, on_the_bus, running_platform

from gangline_schemas.catalog import Topic
from support.fixtures.platform import RunningPlatform
from support.harnesses.log_watch import LogWatch, Seen

PAUSE_S = 0.02
DEADLINE_S = 60.0
NAMES = ("scheduler-0", "scheduler-1")


def leader(data_dir: Path) -> str:
    """The scheduler that says that it leads."""
    for name in NAMES:
        bound = json.loads((data_dir / "run" / "health" / f"{name}.json").read_text())
        with urllib.request.urlopen(f"{bound['url']}/readyz", timeout=5) as answer:
            checks = json.load(answer)["checks"]
        if any(check["name"] == "role" and "leads" in check["detail"] for check in checks):
            return name
    raise RuntimeError("no scheduler leads")


def kill_leader_s(
    platform: RunningPlatform, watch: LogWatch, submitter: Submitter
) -> tuple[float, str]:
    """Seconds until a later writer's first decision, and who wrote it."""
    name = leader(platform.data_dir)
    jobs = [submitter.submit_short("load") for _ in range(10)]
    watch.wait_for(lambda seen: _queues(seen, jobs[0]))
    epoch, at = max(_epoch(seen) for seen in watch.seen), len(watch.seen)
    started = time.time()
    os.kill(platform.pid(name), signal.SIGKILL)
    first = None
    while first is None:
        if time.time() - started > DEADLINE_S:
            raise RuntimeError("nobody decides")
        jobs.append(submitter.submit_short("load"))
        watch.poll(PAUSE_S)
        first = next((seen for seen in watch.seen[at:] if _epoch(seen) > epoch), None)
    for job_id in jobs:
        watch.wait_for(lambda seen, job_id=job_id: _queues(seen, job_id))  # type: ignore[misc]
    queued = [seen.data.job_id for seen in watch.of("job.queued")]
    if len(queued) != len(set(queued)):
        raise RuntimeError("a submission was decided twice")
    writer = first.envelope.source.rpartition("/")[2]
    who = "its successor" if writer == name else "the standby"
    return first.envelope.time.timestamp() - started, who


def _queues(seen: Seen, job_id: str) -> bool:
    return seen.type == "job.queued" and seen.data.job_id == job_id


def _epoch(seen: Seen) -> int:
    return seen.envelope.position.writer_epoch if seen.envelope.position is not None else 0


def run(context: Context) -> list[Result]:
    """Some kills, each on a fresh platform."""
    taken, by = [], []
    for _ in range(context.repeats(3)):
        with (
            running_platform(schedulers=2, live_view=False) as platform,
            on_the_bus(platform, (Topic.SCHEDULING,)) as (watch, submitter),
        ):
            seconds, who = kill_leader_s(platform, watch, submitter)
            context.say(f"kill -9 of the leader -> decision: {seconds:.2f} s, by {who}")
            taken.append(seconds)
            by.append(who)
    note = f"decided by {', '.join(by)}"
    return [context.median("standby_kill_to_decision_s", taken, "s", note=note)]
