"""Full topic names and their creation from the catalog."""

from __future__ import annotations

from dataclasses import dataclass

from gangline_bus.ports import Bus, TopicPartition, TopicSettings
from gangline_schemas.catalog import Topic, catalog

_DLQ_RETENTION_MS = 30 * 86_400_000
STREAM_COMPRESSION = "zstd"
"""Of topics that others write: the one codec for which the client limits what a batch unpacks to.

A broker unpacks batches of other codecs and packs them so, or refuses them.
"""


@dataclass(frozen=True, slots=True)
class TopicNames:
    """Names with the prefix of the settings."""

    prefix: str = ""

    def name(self, topic: Topic) -> str:
        """The full name of a topic."""
        return f"{self.prefix}{topic.value}"

    def dlq(self, topic: str) -> str:
        """The full name of the DLQ of a topic given by its full name."""
        return f"{topic}.dlq"

    def topic(self, name: str) -> Topic:
        """The catalog's topic of a full name. ValueError when it is none of ours."""
        return Topic(name.removeprefix(self.prefix))

    def places(self, bus: Bus, topic: Topic) -> list[TopicPartition]:
        """All partitions of a topic."""
        name = self.name(topic)
        return [TopicPartition(name, index) for index in range(bus.partitions(name))]

    def settings(self) -> list[TopicSettings]:
        """How all topics, and the DLQs of those that are not derived, are created."""
        found = []
        for topic, entry in catalog().items():
            name = self.name(topic)
            compression = STREAM_COMPRESSION if entry.kind == "stream" else "producer"
            found.append(
                TopicSettings(
                    name, entry.partitions, entry.retention_ms, compression, entry.compacted
                )
            )
            if not entry.compacted:
                found.append(TopicSettings(self.dlq(name), 1, _DLQ_RETENTION_MS))
        return found


def create_topics(bus: Bus, names: TopicNames) -> None:
    """Create every topic of the catalog that is missing."""
    bus.create_topics(names.settings())
