"""The cost of a secure embedded Kafka over a plain one, in pairs that take turns.

From the start of the broker until topics are there, and with a secure one users and rights too:
once over an empty directory, and again over the same one.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import psutil
from harness import Context, Result, scratch

from gangline.local.kafka_access import embedded
from gangline.local.processes import Supervisor


def starts(folder: Path, *, secure: bool) -> list[tuple[float, float]]:
    """Seconds of time and of CPU (of both processes): the first start, and the next one."""
    found = []
    for _ in range(2):
        began, used = time.perf_counter(), time.process_time()
        access, broker = embedded(folder / "kafka", secure=secure)
        with Supervisor(folder) as supervisor:
            broker.prepare()
            supervisor.start([broker.spec()])
            supervisor.wait_ready(60)
            access().set_up("")
            took = time.perf_counter() - began
            java = psutil.Process(supervisor.status()[0].pid).cpu_times()
            found.append((took, java.user + java.system + time.process_time() - used))
    return found


def run(context: Context) -> list[Result]:
    """Differences of pairs, after a first pair that is left out."""
    differences: list[list[float]] = [[], [], [], []]
    for turn in range(context.repeats(8, 2)):
        pair = {}
        for secure in (False, True) if turn % 2 else (True, False):
            with scratch() as folder:
                pair[secure] = starts(folder, secure=secure)
        if turn == 0:
            continue
        for number, (plain, secured) in enumerate(zip(pair[False], pair[True], strict=True)):
            for what in (0, 1):
                differences[2 * number + what].append(secured[what] - plain[what])
        context.say(f"secure less plain: {[round(median(found), 2) for found in differences]} s")
    names = ("first_s", "first_cpu_s", "again_s", "again_cpu_s")
    return [
        context.median(f"secure_start_{name}", found, "s")
        for name, found in zip(names, differences, strict=True)
    ]
