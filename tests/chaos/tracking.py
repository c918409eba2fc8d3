"""kill -9 of each process that a point of a metric passes, while MLflow's clients log.

After each kill the process is started again, the clients log more, and then all points are read.
Each that was acknowledged is there once, and the newest value of each run is that of its last step.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from chaos.tracking_writer import METRIC, acknowledged
from gangline.local.kafka import EmbeddedKafka
from gangline.local.server import LocalServer
from support.harnesses.mlflow_process import MlflowProcess
from support.harnesses.postgres import EmbeddedPostgres
from support.harnesses.tracker_process import TrackerProcess
from support.waiting import DEADLINE_S, wait_until

VICTIMS = ("tracker", "mlflow", "database", "broker", "client")
TEAM = "nlp"
WRITERS = 2
LONGEST_S = 1.5
"""A kill comes at a random time up to so long after the clients began."""
COLUMNS = f"{'victim':14} kills acknowledged  lost  doubled  stale  back in"
Tell = Callable[[str], None]


class Writer:
    """A client process. Each of its runs has a file of what was acknowledged."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self._url, self._environment = url, {**os.environ, **environment}
        self._process: subprocess.Popen[str] | None = None
        self.run_id, self.file = "", Path()

    def start(self) -> None:
        """Start it; `ready` tells when it could log."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.tracking_writer", self._url],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> None:
        """Wait until it could log."""
        self._expect("ready")

    def go(self) -> None:
        """Log from now on."""
        self._say(f"{self.run_id} {self.file}")

    def stop(self) -> None:
        """Log no more; returns after the last answer."""
        self._say("stop")
        self._expect("stopped")

    def kill(self) -> None:
        """End it without warning."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def answers(self) -> int:
        """Grows with each answer that it gets for its run."""
        return self.file.stat().st_size if self.file.exists() else 0

    def _say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _expect(self, word: str) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"{word}\n"


@dataclass
class Found:
    """What was read after kills: points of runs that ended otherwise than they must."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    stale: int = 0
    """Runs whose newest value was not that of their last step."""
    back_s: list[float] = field(default_factory=list)
    """From each kill until all clients had another answer."""

    @property
    def wrong(self) -> bool:
        return bool(self.lost or self.doubled or self.stale)

    def __add__(self, other: Found) -> Found:
        return Found(
            self.kills + other.kills,
            self.acknowledged + other.acknowledged,
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.stale + other.stale,
            self.back_s + other.back_s,
        )

    def __str__(self) -> str:
        """A row of the table."""
        return (
            f"{self.kills:5} {self.acknowledged:12} {self.lost:5} {self.doubled:8} {self.stale:6} "
            f"{statistics.median(self.back_s):8.1f} s  {'WRONG' if self.wrong else 'ok'}"
        )


class Tracking:
    """A broker, a PostgreSQL, a tracker, an MLflow server and clients that log."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack, self._runs = folder, stack, 0
        self.broker = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        self.database = stack.enter_context(EmbeddedPostgres(folder / "postgres"))
        self.tracker = TrackerProcess(self.broker.bootstrap, folder)
        stack.callback(self.tracker.close)
        self.tracker.start()
        self.mlflow = MlflowProcess(self.tracker, self.database.database("mlflow"))
        stack.callback(self.mlflow.close)
        self.mlflow.start()
        self._environment = {
            "MLFLOW_TRACKING_TOKEN": self.mlflow.token,
            "MLFLOW_WORKSPACE": TEAM,
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        os.environ.update(self._environment)
        from mlflow import MlflowClient

        self._client = MlflowClient(self.mlflow.url)
        self._experiment = self._client.create_experiment("kills")
        self._writers = [Writer(self.mlflow.url, self._environment) for _ in range(WRITERS)]
        for writer in self._writers:
            stack.callback(writer.kill)
            writer.start()
        for writer in self._writers:
            writer.ready()

    def kill(self, victim: str, random_s: float) -> Found:
        """Kill one while all log, start it again, and read what is there."""
        for writer in self._writers:
            self._runs += 1
            writer.run_id = self._client.create_run(self._experiment).info.run_id
            writer.file = self._folder / f"acknowledged-{self._runs}"
            writer.go()
        wait_until("the first answers", lambda: all(w.answers() for w in self._writers))
        time.sleep(random_s)
        began = time.monotonic()
        self._end(victim)
        before = [writer.answers() for writer in self._writers]
        wait_until(
            "answers after the kill",
            lambda: all(w.answers() > b for w, b in zip(self._writers, before, strict=True)),
        )
        found = Found(kills=1, back_s=[time.monotonic() - began])
        for writer in self._writers:
            writer.stop()
            self._check(writer, found)
        found.doubled += self._ingested_twice()
        return found

    def _end(self, victim: str) -> None:
        if victim == "tracker":
            self.tracker.end(signal.SIGKILL)
            self.tracker.start()
        elif victim == "mlflow":
            self.mlflow.end(signal.SIGKILL)
            self.mlflow.start()
        elif victim == "client":
            writer = self._writers[0]
            writer.kill()
            writer.start()
            writer.ready()
            writer.go()
        else:
            server = self.broker if victim == "broker" else self.database
            _kill(server)
            server.start(DEADLINE_S)

    def _check(self, writer: Writer, found: Found) -> None:
        known = acknowledged(writer.file)
        points = self._client.get_metric_history(writer.run_id, METRIC)
        steps = [point.step for point in points]
        newest = self._client.get_run(writer.run_id).data.metrics[METRIC]
        found.acknowledged += len(known)
        found.lost += len(known - set(steps))
        found.doubled += len(steps) - len(set(steps))
        found.stale += newest != max(steps) or any(point.value != point.step for point in points)

    def _ingested_twice(self) -> int:
        """Rows of records that the tracker wrote more than once."""
        with self.tracker.client() as client:
            rows = client.query(
                "SELECT count() - uniqExact(partition, offset, name, step, time_ms) "
                "FROM metric_points WHERE run_id IN {runs:Array(String)}",
                parameters={"runs": [writer.run_id for writer in self._writers]},
            ).result_rows
        return int(rows[0][0])


@contextmanager
def tracking(folder: Path) -> Iterator[Tracking]:
    """The processes, started; all end with the block."""
    with ExitStack() as stack:
        yield Tracking(folder, stack)


def kill_each(
    folder: Path, times: int, seed: int, tell: Tell, victims: Sequence[str] = VICTIMS
) -> dict[str, Found]:
    """Kill each victim so often, in an order drawn by `seed`; what was found, by victim."""
    drawn = random.Random(seed)
    order = [victim for victim in victims for _ in range(times)]
    drawn.shuffle(order)
    total = {victim: Found() for victim in victims}
    with tracking(folder) as world:
        for number, victim in enumerate(order, 1):
            found = world.kill(victim, drawn.uniform(0, LONGEST_S))
            total[victim] = total[victim] + found
            tell(f"{number:4} {victim:9} {found}")
    return total


def _kill(server: LocalServer) -> None:
    """A server with its children: PostgreSQL starts only once all of them have ended."""
    parent = psutil.Process(server.pid)
    parent.suspend()  # so that it starts no more of them
    family = [parent, *parent.children(recursive=True)]
    for process in family:
        process.kill()
    wait_until("the end", lambda: server.pid is None and all(map(_has_ended, family)))


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
