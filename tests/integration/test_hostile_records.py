"""Records on a real Kafka that no well-behaved client writes: refused, and the next ones read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from gangline_bus.codec import decode, encode
from gangline_bus.decider import DeciderLoop
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import Record, TopicPartition
from gangline_bus.topics import TopicNames, create_topics
from gangline_quota.core.decide import Quota
from gangline_quota.core.state import State
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import TeamConfigureRequested
from gangline_schemas.events.quota import JobRejected
from gangline_schemas.events.requests import JobSubmitted
from support.attacks.hostile_writer import KEY, Headers, HostileWriter, attributes
from support.builders.deciding import spec, team


class Place:
    """Quota on a Kafka of its own prefix, and a client that may write requests."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.names = TopicNames(f"hostile-{uuid.uuid4().hex[:8]}.")
        self.topic = self.names.name(Topic.REQUESTS)
        self.bus = KafkaBus(bootstrap, client="hostile")
        create_topics(self.bus, self.names)
        self.loop: DeciderLoop[State] = DeciderLoop(
            self.bus, Quota(), lambda: datetime.now(UTC), names=self.names
        )
        self.loop.take_over()

    def send(
        self,
        value: bytes,
        headers: Headers,
        *,
        times: int = 1,
        at_ms: int = 0,
        codec: str = "none",
    ) -> int:
        """How many records the broker refused."""
        writer = HostileWriter(self.bootstrap, self.topic, headers)
        return writer.send(value, times=times, at_ms=at_ms, codec=codec)

    def say(self, subject: str, event: Event) -> None:
        """A good request behind all that is bad."""
        envelope = Envelope(uuid.uuid4().hex, "/users", datetime.now(UTC), subject, event)
        writer = self.bus.writer()
        topic = self.names.name(topic_of(event.type))
        writer.send(encode(envelope, topic=topic, key=KEY.decode()))
        assert writer.flush(60) == 0
        writer.close()

    def served(self) -> None:
        """A job is admitted, whatever stands before it."""
        self.say("red", TeamConfigureRequested(config=team("red"), user="ada"))
        self.until(lambda: "red" in self.loop.state.teams, "the team was never configured")
        self.say("good", JobSubmitted(job_id="good", spec=spec("red"), user="ada"))
        self.until(lambda: "good" in self.loop.state.active, "the job was never admitted")

    def until(self, done: Callable[[], bool], otherwise: str) -> None:
        for _ in range(600):
            if done():
                return
            self.loop.cycle(0.1)
        raise AssertionError(otherwise)

    def read(self, topic: str) -> list[Record]:
        """All committed records of a topic of one partition."""
        place = TopicPartition(topic, 0)
        end = self.bus.end_offsets([place])[place]
        reader = self.bus.reader("check")
        reader.assign({place: 0})
        found: list[Record] = []
        for _ in range(1000):
            if reader.positions()[place] >= end:
                break
            found += reader.poll(1000, 0.1)
        reader.close()
        return found

    def refused(self) -> list[str]:
        """Why, of what is in the DLQ."""
        name = f"{self.names.prefix}gangline.quota.0"
        self.loop.close()
        self.bus.transactional_writer(name).close()  # the markers of its last commit are written
        return [
            dict(record.headers)["gangline_dlq_error"].decode()
            for record in self.read(self.names.dlq(self.topic))
        ]


@pytest.fixture
def place(kafka_bootstrap: str) -> Iterator[Place]:
    found = Place(kafka_bootstrap)
    yield found
    found.bus.close()


def test_a_value_that_is_larger_than_the_dlq_takes(place: Place) -> None:
    place.send(
        b'{"job_id": "A", "x": "' + b"y" * 4_050_000 + b'"}', attributes("job.cancel.requested")
    )
    place.served()
    (reason,) = place.refused()
    assert reason.startswith("job.cancel.requested: job_id: must be 1 to 63 of a-z")
    (kept,) = place.read(place.names.dlq(place.topic))
    assert len(kept.value) == 1024 * 1024
    assert dict(kept.headers)["gangline_dlq_value_bytes"] == b"4050024"


def test_a_value_that_unpacks_to_50_mb(place: Place) -> None:
    place.send(
        b'{"job_id": "a", "x": "' + b"y" * 50_000_000 + b'"}',
        attributes("job.cancel.requested"),
        codec="zstd",
    )
    place.served()
    assert place.refused() == ["the value is above 4 MiB (50000024 bytes)"]


def test_a_batch_that_no_client_unpacks(place: Place) -> None:
    place.send(b"y" * 30_000_000, attributes("job.cancel.requested"), times=5, codec="zstd")
    place.served()
    reasons = place.refused()
    assert reasons
    assert all("a batch that cannot be read" in it or "above 4 MiB" in it for it in reasons)
    assert any("a batch that cannot be read" in it for it in reasons)


@pytest.mark.parametrize("codec", ["gzip", pytest.param("lz4", marks=pytest.mark.nightly)])
def test_a_batch_that_a_client_would_unpack_whatever_its_size(place: Place, codec: str) -> None:
    """The broker packs it as the topic says, so that clients refuse it, or refuses it itself."""
    value, headers = b"y" * 30_000_000, attributes("job.cancel.requested")
    lost = place.send(value, headers, times=10, codec=codec)
    place.served()
    assert lost or any("a batch that cannot be read" in it for it in place.refused())


def test_a_field_with_a_name_of_2_mb_is_rejected_in_few_words(place: Place) -> None:
    bad = spec("red").model_dump(mode="json") | {"env": {"K" * 2_100_000: 5}}
    value = json.dumps({"job_id": "bad", "spec": bad}).encode()
    place.send(value, attributes("job.submitted"))
    place.served()
    assert place.refused() == []
    events = [decode(record).data for record in place.read(place.names.name(Topic.QUOTA))]
    (rejected,) = [event for event in events if isinstance(event, JobRejected)]
    assert rejected.job_id == "bad"
    assert len(rejected.encode()) < 20_000


def test_a_time_before_the_year_1(place: Place) -> None:
    place.send(
        b'{"job_id": "a"}', attributes("job.cancel.requested"), at_ms=-(10**17), codec="zstd"
    )
    place.served()
    assert place.refused() == ["the record's own time is not in the years 1970 to 2199"]


def test_headers_that_are_there_twice(place: Place) -> None:
    headers = [*attributes("job.cancel.requested"), ("ce_id", b"another")]
    place.send(b'{"job_id": "a"}', headers)
    place.served()
    assert place.refused() == ["the header ce_id is there twice"]


def test_a_header_whose_name_is_no_text(place: Place) -> None:
    headers = attributes("job.cancel.requested")
    writer = HostileWriter(place.bootstrap, place.topic, headers)
    writer.raw_header(b"\xff\xfe", times=50)  # the interpreter has optimised its code then
    place.served()
    assert place.refused() == ["the name of a header is not UTF-8"] * 50
