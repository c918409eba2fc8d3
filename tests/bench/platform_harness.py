"""The embedded platform as benchmarks use it: real parts, fresh data, a client on the bus."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness import scratch

from gangline.local.client import Client
from gangline_bus.codec import encode
from gangline_bus.ports import Writer
from gangline_bus.topics import TopicNames
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.requests import JobCancelRequested, JobSubmitted
from support.fixtures.platform import RunningPlatform, start_platform
from support.harnesses.log_watch import LogWatch, job_spec

NODES, SLOTS = 2, 2


@contextmanager
def running_platform(**settings: Any) -> Iterator[RunningPlatform]:
    """A platform of 2 nodes x 2 slots over fresh data; gone with its data afterwards."""
    with scratch() as folder:
        platform, _ = start_platform(folder / "data", **settings)
        with platform:
            client: Client = platform.start()
            yield RunningPlatform(platform, client, folder / "data")


@dataclass
class Submitter:
    """Publishes requests as another system does, over one connection that stays open."""

    writer: Writer
    names: TopicNames

    def publish(self, event: Event, subject: str) -> None:
        """Hand the event to the client; it is on its way when this returns."""
        envelope = Envelope(str(uuid.uuid4()), "/bench", datetime.now(UTC), subject, event)
        self.writer.send(encode(envelope, topic=self.names.name(topic_of(event.type))))

    def submit(self, name: str, **fields: Any) -> str:
        """Submit a job; its id."""
        job_id = f"{name}-{uuid.uuid4().hex[:10]}"
        self.publish(JobSubmitted(job_id=job_id, spec=job_spec(name, **fields)), job_id)
        return job_id

    def submit_short(self, name: str) -> str:
        """Submit a job of one GPU that ends at once."""
        resources = {"gpus": 1, "memory_per_gpu_gb": 0.1}
        return self.submit(name, command=["true"], resources=resources)

    def cancel(self, job_id: str) -> None:
        """Ask for the end of a job."""
        self.publish(JobCancelRequested(job_id=job_id, user="bench"), job_id)


@contextmanager
def on_the_bus(
    platform: RunningPlatform, topics: tuple[Topic, ...]
) -> Iterator[tuple[LogWatch, Submitter]]:
    """A consumer of these topics and a producer, both connected already."""
    with LogWatch(platform.client.bootstrap_servers, topics) as watch:
        writer = watch.bus.writer()
        submitter = Submitter(writer, watch.names)
        try:
            yield watch, submitter
        finally:
            writer.close()
