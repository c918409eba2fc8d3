"""Reads the platform's topics as any consumer would, and checks what must hold of them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from gangline_bus.codec import UndecodableError, decode, encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusError, Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, catalog, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.job import JobSpec

DEADLINE_S = 300.0
TRAINER = ["python", "-m", "gangline_worker.training"]
PACED = ["python", str(Path(__file__).with_name("paced.py"))]
SMALL_MODEL = {
    "dim": 32,
    "layers": 2,
    "heads": 2,
    "seq_len": 32,
    "batch_size": 8,
    "lr": 0.005,
    "strategy": "ddp",  # a step of FSDP's costs ten times the CPU
}


@dataclass(frozen=True)
class Seen:
    """One event and where it was read."""

    topic: Topic
    partition: int
    offset: int
    envelope: Envelope

    @property
    def type(self) -> str:
        return self.envelope.type

    @property
    def data(self) -> Any:
        return self.envelope.data


class LogWatch:
    """Everything that was written since the beginning, growing as it is polled."""

    def __init__(
        self,
        bootstrap: str,
        topics: tuple[Topic, ...] | None = None,
        *,
        prefix: str = "",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.names = TopicNames(prefix)
        client = f"watch-{uuid.uuid4().hex[:6]}"
        self.bus = KafkaBus(bootstrap, client=client, settings=settings)
        self.seen: list[Seen] = []
        self.refused: list[Record] = []
        chosen = topics or tuple(topic for topic in Topic if topic is not Topic.HEARTBEATS)
        self._reader = self.bus.reader("watch")
        self._reader.assign(
            {at: 0 for topic in chosen for at in self.names.places(self.bus, topic)}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no more."""
        self._reader.close()
        self.bus.close()

    def poll(self, timeout_s: float = 0.2) -> None:
        """Take in what is new."""
        for record in self._reader.poll(2000, timeout_s):
            topic = self.names.topic(record.topic)
            try:
                envelope = decode(record)
            except UndecodableError:
                self.refused.append(record)
                continue
            self.seen.append(Seen(topic, record.partition, record.offset, envelope))

    def wait_for(
        self, wanted: Callable[[Seen], bool], *, timeout_s: float = DEADLINE_S, after: int = 0
    ) -> Seen:
        """The first event from index `after` on that is wanted."""
        deadline = time.monotonic() + timeout_s
        at = after
        while time.monotonic() < deadline:
            while at < len(self.seen):
                if wanted(self.seen[at]):
                    return self.seen[at]
                at += 1
            self.poll()
        last = [seen for seen in self.seen if seen.topic is not Topic.VITALS][-25:]
        tail = "\n".join(f"{s.envelope.time:%T} {s.type} {s.data!r}"[:300] for s in last)
        raise AssertionError(f"not seen within {timeout_s:.0f} s; the last events:\n{tail}")

    def wait_state(self, job_id: str, *states: str, timeout_s: float = DEADLINE_S) -> Seen:
        """The job's first change to one of these states; a rejected one comes to none.

        When it ended, all that was written before is read as well: topics come in any order.
        """

        def decided(seen: Seen) -> bool:
            if seen.type == "job.state.changed":
                return seen.data.job_id == job_id and seen.data.state in states
            return seen.type == "job.rejected" and seen.data.job_id == job_id

        found = self.wait_for(decided, timeout_s=timeout_s)
        if found.type == "job.rejected":
            raise AssertionError(f"{job_id} was rejected: {found.data.reason}")
        if found.data.state.terminal:
            self.settle()
        return found

    def wait_step(self, job_id: str, step: int, *, attempt: int = 1) -> Seen:
        """The first report of the job at this step or later."""
        return self.wait_for(
            lambda s: (
                s.type == "worker.step"
                and s.data.run_id == job_id
                and s.data.attempt >= attempt
                and max(s.data.step) >= step
            )
        )

    def of(self, event_type: str, job_id: str | None = None) -> list[Seen]:
        """All seen events of a type, of one job."""
        return [
            seen
            for seen in self.seen
            if seen.type == event_type
            and (job_id is None or getattr(seen.data, "job_id", None) == job_id)
        ]

    def publish(self, event: Event, subject: str) -> None:
        """Publish a request as another system does."""
        envelope = Envelope(str(uuid.uuid4()), "/test", datetime.now(UTC), subject, event)
        writer = self.bus.writer()
        writer.send(encode(envelope, topic=self.names.name(topic_of(event.type))))
        assert writer.flush(60) == 0
        writer.close()

    def submit(self, name: str, **fields: Any) -> str:
        """Submit a small training job by a bare event; its id."""
        job_id = f"{name}-{uuid.uuid4().hex[:8]}"
        self.publish(JobSubmitted(job_id=job_id, spec=job_spec(name, **fields)), job_id)
        return job_id

    def settle(self) -> None:
        """Read up to the present end of every log."""
        places = [
            TopicPartition(self.names.name(topic), partition)
            for topic, entry in catalog().items()
            if topic is not Topic.HEARTBEATS
            for partition in range(entry.partitions)
        ]
        ends = self.bus.end_offsets(places)
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            positions = self._reader.positions()
            if all(positions.get(place, end) >= end for place, end in ends.items()):
                return
            self.poll()
        raise BusError("the logs were not read to their ends")

    def dead_letters(self) -> dict[str, int]:
        """How many records each topic of dead letters has, without those that have none."""
        places = {
            topic.name: [TopicPartition(topic.name, index) for index in range(topic.partitions)]
            for topic in self.names.settings()
            if topic.name.endswith(".dlq")
        }
        counts = {name: sum(self.bus.end_offsets(at).values()) for name, at in places.items()}
        return {name: count for name, count in counts.items() if count}

    def assert_sound(self) -> None:
        """Each decision log is dense, no decision was made twice, each job ended once."""
        self.settle()
        for topic, entry in catalog().items():
            if entry.kind == "log":
                positions = [s.envelope.position for s in self.seen if s.topic is topic]
                numbers = [position.seq for position in positions if position]
                assert numbers == list(range(len(positions))), f"{topic} has gaps"
                epochs = [position.writer_epoch for position in positions if position]
                assert epochs == sorted(epochs), f"{topic} was written by a stale writer"
                ids = Counter(s.envelope.id for s in self.seen if s.topic is topic)
                assert [i for i, n in ids.items() if n > 1] == [], f"{topic} decided twice"
        ends = Counter(s.data.job_id for s in self.of("job.state.changed") if s.data.state.terminal)
        assert all(count == 1 for count in ends.values()), f"ended more than once: {ends}"


def job_spec(name: str, **fields: Any) -> JobSpec:
    """A spec of a 2-GPU training job that takes some seconds; `hyperparameters` are merged."""
    hyperparameters = SMALL_MODEL | {"steps": 40} | fields.pop("hyperparameters", {})
    return JobSpec.model_validate(
        {
            "name": name,
            "team": "default",
            "command": TRAINER,
            "resources": {"gpus": 2, "memory_per_gpu_gb": 0.25},
            "checkpoint": {"interval_minutes": 0.03},
            "stop_grace_seconds": 10,
            "hyperparameters": hyperparameters,
        }
        | fields
    )
