"""The live view: a step on the bus -> progress on the bus, at the designed load and ten times that.

10,000 ranks in 500 gangs: rank 0 of each reports a step of 12 metrics each second. Run it alone:
python tests/bench/run.py --only progress --quick. Producer, broker and view share the machine.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
from harness import Context, Result, scratch

from gangline.local.kafka import EmbeddedKafka
from gangline_bus.codec import decode, encode
from gangline_bus.ports import OutRecord
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.progress import RunProgress, progress_key
from gangline_schemas.events.steps import WorkerStep
from support.harnesses.tracker_process import TrackerProcess

GANGS = 500
METRICS = (
    "loss", "lr", "grad_norm", "tokens_per_s", "step_s", "data_wait_s", "busy_s", "mfu",
    "checkpoint_s", "memory_gb", "epoch", "samples",
)  # fmt: skip
SAMPLED = 7
"""The event of one run in so many is decoded here."""
DEADLINE_S = 240.0


class Load:
    """Ranks 0 that report, and what becomes of it."""

    def __init__(self, view: TrackerProcess) -> None:
        self._view = view
        self._reader = view.bus.reader("bench")
        self._reader.assign(dict.fromkeys(view.names.places(view.bus, Topic.PROGRESS), 0))
        self._step = 0
        self.latencies_s: list[float] = []
        self.newest: dict[bytes, int] = {}
        self._reported: dict[bytes, int] = {}

    def report(self, runs: int) -> None:
        """Each run ends a step now."""
        self._step += 1
        for number in range(runs):
            team, run_id = f"team-{number % 50}", f"run-{number}"
            self._view.writer.send(self._record(team, run_id))
            if number % SAMPLED == 0:
                self._reported[progress_key(team, run_id).encode()] = self._step

    def _record(self, team: str, run_id: str) -> OutRecord:
        now_ms = int(time.time() * 1000)
        event = WorkerStep(
            run_id=run_id,
            team=team,
            attempt=1,
            rank=0,
            step=(self._step,),
            time_ms=(now_ms,),
            metrics=dict.fromkeys(METRICS, (0.5 + self._step / 1000000.0,)),
        )
        envelope = Envelope(f"{run_id}-{self._step}", "/bench", datetime.now(UTC), run_id, event)
        return encode(envelope, topic=self._view.names.name(Topic.STEPS))

    def look(self, timeout_s: float = 0.0) -> None:
        """Take in the progress that was published."""
        for record in self._reader.poll(2000, timeout_s):
            if record.key not in self._reported:
                continue
            event = decode(record).data
            assert isinstance(event, RunProgress)
            self.latencies_s.append(time.time() - event.time_ms / 1000)
            self.newest[record.key or b""] = event.step

    def steadily(self, runs: int, seconds: int) -> float:
        """Report once a second for a while; how long the last step then takes to be known, in s."""
        self.latencies_s.clear()
        began = time.monotonic()
        for second in range(seconds):
            while time.monotonic() < began + second:
                self.look(0.05)
            self.report(runs)
        return self.caught_up()

    def caught_up(self) -> float:
        """Wait until the newest step of all sampled runs is known; how long that took, in s."""
        began = time.monotonic()
        while any(self.newest.get(key, 0) < step for key, step in self._reported.items()):
            assert time.monotonic() < began + DEADLINE_S, "progress did not come"
            self.look(0.05)
        return time.monotonic() - began

    def close(self) -> None:
        self._reader.close()


@contextmanager
def running(folder: Path) -> Iterator[tuple[TrackerProcess, Load]]:
    with EmbeddedKafka(folder / "kafka") as kafka:
        (folder / "view").mkdir()
        view = TrackerProcess(kafka.bootstrap, folder / "view", module="gangline_tracker.live")
        load = Load(view)
        try:
            yield view, load
        finally:
            load.close()
            view.close()


def run(context: Context) -> list[Result]:
    seconds = 10 if context.quick else 30
    rounds = 20 if context.quick else 60
    found = []
    with scratch() as folder, running(folder) as (view, load):
        for _ in range(rounds):
            load.report(GANGS)
            view.settled()
        view.start()
        took_s = _drained(load)
        backlog = GANGS * rounds
        found.append(
            context.result(
                "progress_records_per_s", backlog / took_s, "records/s",
                note=f"a backlog of {backlog:,}, from the process's start",
            )
        )  # fmt: skip
        for name, runs in (("", GANGS), ("_10x", 10 * GANGS)):
            context.say(f"{runs} gangs report each second")
            found += _at(context, name, view, load, runs, seconds)
        memory = psutil.Process(view.pid).memory_full_info().pss / 1e6
        found.append(context.result("progress_memory_mb", memory, "MB", note="PSS, 5,000 runs"))
        restarts = [_restart_s(view, load) for _ in range(context.repeats(3))]
        found.append(context.median("progress_restart_s", restarts, "s", note="after kill -9"))
    return found


def _drained(load: Load) -> float:
    began = time.monotonic()
    load.caught_up()
    return time.monotonic() - began


def _at(
    context: Context, name: str, view: TrackerProcess, load: Load, runs: int, seconds: int
) -> list[Result]:
    process = psutil.Process(view.pid)
    before, began = process.cpu_times(), time.monotonic()
    behind_s = load.steadily(runs, seconds)
    after, took_s = process.cpu_times(), time.monotonic() - began
    cpu_s = after.user + after.system - before.user - before.system
    rate = f"{runs * seconds / cpu_s:,.0f} records a CPU second"
    cuts = statistics.quantiles(load.latencies_s, n=100)
    return [
        context.result(f"progress{name}_p50_s", cuts[49], "s", note=f"{runs} runs a second"),
        context.result(f"progress{name}_p99_s", cuts[98], "s"),
        context.result(f"progress{name}_behind_s", behind_s, "s", note="at the end"),
        context.result(f"progress{name}_cpu", 100 * cpu_s / took_s, "% of a core", note=rate),
    ]


def _restart_s(view: TrackerProcess, load: Load) -> float:
    """From kill -9 to progress of a step that was reported after it."""
    view.end(signal.SIGKILL)
    began = time.monotonic()
    load.report(GANGS)
    view.settled()
    view.start()
    load.caught_up()
    return time.monotonic() - began
