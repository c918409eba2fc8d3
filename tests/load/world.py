"""The platform, its fleet, its jobs and its readers; what they show is measured here.

One consumer reads the logs of the scheduler and the fault manager. Submissions are timed from the
call that sends them to the arrival of `gang.allocated`.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Self

import psutil

from gangline.local.client import Client
from gangline.local.platform import Platform
from gangline.sdk import connect
from gangline_bus.codec import decode, encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusError
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.job import JobSpec
from load.fleet import FleetSettings
from load.nodes import NAMES
from load.processes import LoadProcess

PROBE_EVERY_S = 0.5
ALMOST_ALL = 0.98
WATCHED = frozenset(
    {b"node.admitted", b"node.suspected", b"gang.allocated", b"job.state.changed", b"node.failed"}
)
MIX = ((0.80, (1, 2, 4, 8)), (0.15, (16, 32, 64)), (0.05, (128, 256, 512, 1024)))
"""The share of jobs, and their GPUs."""


@dataclass
class Seen:
    """What the logs said so far."""

    admissions: int = 0
    suspected: Counter[str] = field(default_factory=Counter)
    silent: set[str] = field(default_factory=set)
    """Nodes that failed because nothing came from them."""
    ends: Counter[str] = field(default_factory=Counter)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """Of probes: when they were submitted (monotonic), and the seconds to `gang.allocated`."""


class World:
    """Everything beside the platform itself. Use it as a context manager."""

    def __init__(
        self, platform: Platform, client: Client, fleets: Sequence[FleetSettings], jobs: int
    ) -> None:
        self.platform = platform
        self.client = client
        self.rejoined_s = 0.0
        """How long all nodes took to join again; 0: they did not."""
        self.lost = range(0)
        """Nodes that are gone on purpose."""
        self.seen = Seen()
        self.jobs = jobs
        self._fleets = fleets
        self._random = random.Random(0)
        self._probes: dict[str, float] = {}
        self._running: set[str] = set()
        self._began: set[str] = set()
        self._stopping, self._paused = threading.Event(), threading.Event()
        self._bus = KafkaBus(fleets[0].bootstrap, client="load")
        self._writer = self._bus.writer(prompt=True)
        self._threads = [threading.Thread(target=self._watch), threading.Thread(target=self._work)]
        self._processes: list[LoadProcess] = []
        self._submitted = 0

    def __enter__(self) -> Self:
        """The logs are read from here on."""
        self._reader = self._bus.reader("load")
        places = [at for topic in (Topic.SCHEDULING, Topic.FAULTS)
                  for at in NAMES.places(self._bus, topic)]  # fmt: skip
        self._reader.assign(self._bus.end_offsets(places))
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of it."""
        self._stopping.set()
        self._paused.set()
        for process in self._processes:
            process.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._writer.close()

    def join(self, timeout_s: float = 300.0) -> float:
        """Start the fleet; seconds until all its nodes are admitted."""
        began = time.monotonic()
        self._processes = [LoadProcess("load.fleet", settings) for settings in self._fleets]
        return self.wait_admissions(0, began, timeout_s)

    def wait_admissions(self, before: int, began: float, timeout_s: float = 300.0) -> float:
        """Seconds from `began` until so many more nodes as the fleet has are admitted."""
        wanted = before + sum(item.last - item.first for item in self._fleets) - len(self.lost)
        while self.seen.admissions < wanted:
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(
                    f"{self.seen.admissions} of {wanted} nodes were admitted in time"
                )
            time.sleep(0.05)
        return time.monotonic() - began

    def begin_work(self) -> None:
        """Keep the jobs running and send probes from here on."""
        self._threads[1].start()

    def almost_all_began(self, timeout_s: float) -> float:
        """Seconds until the burst of the start is over. Meanwhile some jobs end, others follow."""
        began = time.monotonic()
        while len(self._began) < ALMOST_ALL * self.jobs:
            if time.monotonic() - began > timeout_s:
                raise TimeoutError(f"{len(self._began)} of {self.jobs} jobs began in time")
            time.sleep(0.05)
        return time.monotonic() - began

    def order(self, text: str) -> None:
        """Tell each process of the fleet."""
        for process in self._processes:
            process.order(text)

    def end_fleet(self) -> list[dict[str, Any]]:
        """Its accounts."""
        return [process.end() for process in self._processes]

    def pause_work(self) -> None:
        """No more jobs and probes."""
        self._paused.set()
        self._threads[1].join()

    def memory_mb(self) -> dict[str, float]:
        """Of each process of the platform."""
        rows = self.platform.supervisor.status()
        return {
            row.name: psutil.Process(row.pid).memory_info().rss / 1e6 for row in rows if row.pid
        }

    def cpu_s(self) -> dict[str, float]:
        """Seconds of CPU of each process of the platform, of its present life."""
        rows = self.platform.supervisor.status()
        return {row.name: sum(psutil.Process(row.pid).cpu_times()[:2]) for row in rows if row.pid}

    def unread(self) -> int:
        """Records that some process has still to read, as they last reported."""
        with connect(self.client.url, self.client.token) as gateway:
            return sum(row.unread_records or 0 for row in gateway.health().services)

    def _watch(self) -> None:
        while not self._stopping.wait(0):
            try:
                records = self._reader.poll(1000, 0.1)
            except BusError:
                time.sleep(0.5)
                continue
            now = time.monotonic()
            for found in records:
                if dict(found.headers).get("ce_type") in WATCHED:
                    self._note(decode(found).data, now)

    def _note(self, event: Event, now: float) -> None:
        seen = self.seen
        if event.type == "node.admitted":
            seen.admissions += 1
        elif event.type == "node.suspected":
            seen.suspected[event.node_id] += 1  # type: ignore[attr-defined]
        elif event.type == "node.failed":
            if event.reason == "silent":  # type: ignore[attr-defined]
                seen.silent.add(event.node_id)  # type: ignore[attr-defined]
        elif event.type == "gang.allocated":
            if not event.job_id.startswith("probe"):  # type: ignore[attr-defined]
                self._began.add(event.job_id)  # type: ignore[attr-defined]
            if (sent := self._probes.pop(event.job_id, None)) is not None:  # type: ignore[attr-defined]
                seen.latencies.append((sent, now - sent))
        elif event.state.terminal:  # type: ignore[attr-defined]
            seen.ends[event.job_id] += 1  # type: ignore[attr-defined]
            self._running.discard(event.job_id)  # type: ignore[attr-defined]
            self._began.discard(event.job_id)  # type: ignore[attr-defined]

    def _work(self) -> None:
        """Jobs as long as fewer than wanted run, and a probe each half second."""
        due = time.monotonic()
        while not self._paused.is_set():
            for _ in range(min(10, self.jobs - len(self._running))):
                self._running.add(self._submit("load", self._gpus(), self._random.uniform(60, 600)))
            self._submit("probe", 1, 1.0)
            due += PROBE_EVERY_S
            self._paused.wait(max(0.0, due - time.monotonic()))

    def _gpus(self) -> int:
        shares, sizes = zip(*MIX, strict=True)
        return self._random.choice(self._random.choices(sizes, shares)[0])

    def _submit(self, name: str, gpus: int, seconds: float) -> str:
        self._submitted += 1
        job_id = f"{name}-{uuid.uuid4().hex[:10]}"
        spec = JobSpec.model_validate(
            {"name": name, "team": "default", "command": ["true"],
             "resources": {"gpus": gpus, "memory_per_gpu_gb": 1},
             "hyperparameters": {"seconds": seconds}}
        )  # fmt: skip
        event = JobSubmitted(job_id=job_id, spec=spec)
        envelope = Envelope(job_id, "/load", datetime.now(UTC), job_id, event)
        if name == "probe":
            self._probes[job_id] = time.monotonic()
        self._writer.send(encode(envelope, topic=NAMES.name(topic_of(event.type))))
        return job_id

    @property
    def waiting_probes(self) -> int:
        """Probes that were submitted and have no GPU yet."""
        return len(self._probes)

    @property
    def gone(self) -> set[str]:
        """The nodes of `lost`, by name."""
        return {f"sim-{number}" for number in self.lost}

    def healthy_suspected(self) -> list[str]:
        """Nodes that were suspected or failed although they beat."""
        return sorted((self.seen.suspected.keys() | self.seen.silent) - self.gone)

    @property
    def submitted(self) -> int:
        """Jobs and probes."""
        return self._submitted
