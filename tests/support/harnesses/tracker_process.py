"""The tracker as a real process over real Kafka, for integration tests."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from gangline.local.ports import pick_ports
from gangline_bus.codec import decode, encode
from gangline_bus.kafka import KafkaBus
from gangline_bus.topics import TopicNames, create_topics
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.parts import PartAnnounced
from gangline_service.tokens import Role, TokenEntry, new_token, write_tokens
from support.harnesses.service_process import ServiceProcess


class TrackerProcess(ServiceProcess):
    """One installation: topics under a prefix of its own, a database, tokens, a process.

    `own`: settings of its own, such as the URL of a ClickHouse server.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        module: str = "gangline_tracker",
        own: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(module, folder, "tracker")
        own = own or {}
        self._has_door = module == "gangline_tracker" and "GANGLINE_CLICKHOUSE" not in own
        self.bootstrap = bootstrap
        self.names = TopicNames(f"t{uuid.uuid4().hex[:8]}-")
        self.tokens = {name: new_token() for name in ("admin", "nlp", "vision", "service")}
        self.bus = KafkaBus(bootstrap, client="tracker-test")
        create_topics(self.bus, self.names)
        self.writer = self.bus.writer()
        self.sent = 0
        self.address = folder / "address.json"
        write_tokens(
            folder / "tokens.json",
            [
                TokenEntry.of(self.tokens["admin"], name="admin", role=Role.ADMIN),
                TokenEntry.of(self.tokens["service"], name="gateway", role=Role.SERVICE),
                *(
                    TokenEntry.of(self.tokens[team], name=team, role=Role.MEMBER, teams=[team])
                    for team in ("nlp", "vision")
                ),
            ],
        )
        self._environment = {
            **os.environ,
            "GANGLINE_BOOTSTRAP_SERVERS": bootstrap,
            "GANGLINE_TOPIC_PREFIX": self.names.prefix,
            "GANGLINE_TOKENS_FILE": str(folder / "tokens.json"),
            "GANGLINE_CLICKHOUSE": f"chdb://{folder / 'db'}",
            "GANGLINE_QUERY_TIME_S": "25",
            "GANGLINE_HTTP_PORT": str(pick_ports(1)[0]),
            "GANGLINE_HTTP_FILE": str(self.address),
            "GANGLINE_INSTANCE_ID": "tracker-0",
            **own,
        }

    def start(self) -> None:
        """Start the process and wait until it serves."""
        self.address.unlink(missing_ok=True)
        self.run(self._environment)

    def is_ready(self) -> bool:
        """With an endpoint, as soon as that answers."""
        return self.address.exists() if self._has_door else super().is_ready()

    def close(self) -> None:
        """End what still runs."""
        super().close()
        self.writer.close()
        self.bus.close()

    @property
    def url(self) -> str:
        """Where it serves, also after a restart."""
        return str(json.loads(self.address.read_text())["url"])

    def client(self, who: str = "admin") -> Client:
        """The genuine clickhouse-connect client over HTTP."""
        return clickhouse_connect.get_client(
            dsn=self.url, username=who, password=self.tokens[who], database="gangline"
        )

    def send(self, event: Event, subject: str, *, partition: int | None = None) -> None:
        """Publish one event on its topic."""
        self.sent += 1
        envelope = Envelope(f"event-{self.sent}", "test", datetime.now(UTC), subject, event)
        topic = self.names.name(topic_of(event.type))
        self.writer.send(encode(envelope, topic=topic, partition=partition))

    def announced(self) -> set[str]:
        """The parts that announced their release on this bus."""
        reader = self.bus.reader("announced")
        reader.assign(dict.fromkeys(self.names.places(self.bus, Topic.PARTS), 0))
        try:
            events = [decode(record).data for record in reader.poll(1000, 5.0)]
        finally:
            reader.close()
        return {one.part for one in events if isinstance(one, PartAnnounced) and one.release}

    def settled(self) -> None:
        """Wait until everything sent is on the bus."""
        assert self.writer.flush(30.0) == 0


@contextmanager
def running_tracker(
    bootstrap: str, folder: Path, own: Mapping[str, str] | None = None
) -> Iterator[TrackerProcess]:
    """A started tracker; it must end in order after the block."""
    process = TrackerProcess(bootstrap, folder, own=own)
    try:
        process.start()
        yield process
        assert process.end() == 0
    finally:
        process.close()
