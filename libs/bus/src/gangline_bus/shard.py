"""One shard of one decider: the names that it has in Kafka, and where it continues to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gangline_bus.decision import Decider
from gangline_bus.fold import Folded, LogBroken
from gangline_bus.input_offsets import begin_at
from gangline_bus.ports import Bus, Note, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic


class Shard:
    """Names of a shard: `id` is the transactional id of its writer, `log` its log's partition.

    Offsets of inputs are committed in `group`, the notes on poison inputs in `notes`.
    """

    def __init__(self, decider: Decider[Any, Any], names: TopicNames, number: int) -> None:
        self.id = f"{names.prefix}gangline.{decider.name}.{number}"
        self.log = TopicPartition(names.name(decider.log), number)
        self.group, self.notes = f"{self.id}.inputs", f"{self.id}.notes"
        self.signals = frozenset(names.name(topic) for topic in decider.signals)
        self._decider = decider
        self._names = names

    def start_positions(
        self, bus: Bus, folded: Folded[Any]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Each input from the first record that is not decided, signals from their end.

        Also the ends of the inputs in which some wait. Raises LogBroken when there are decisions,
        and nothing says which inputs they came from.
        """
        inputs = self._places(bus, self._decider.inputs)
        committed = bus.committed(self.group, inputs)
        named = {at: folded.inputs.get(self._catalog_name(at)) for at in inputs}
        known = [offset for offset in (*named.values(), *committed.values()) if offset is not None]
        if folded.next_seq and inputs and not known:
            raise LogBroken(
                f"{self.log.topic}[{self.log.partition}] holds {folded.next_seq} "
                "decisions, but neither it nor Kafka says which inputs they were made from; see "
                "'Offsets are lost' in docs/guides/bad-days.md"
            )
        starts, ends = bus.start_offsets(inputs), bus.end_offsets(inputs)
        positions = begin_at(inputs, committed, named, starts, ends)
        behind = {at: ends[at] for at in inputs if positions[at] < ends[at]}
        return positions | bus.end_offsets(self._places(bus, self._decider.signals)), behind

    def note(self, text: str) -> Note:
        """A text that the shard's next owner reads."""
        return Note(self.notes, self.log, text)

    def of_inputs(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The positions of inputs: those of signals are never committed."""
        return {at: offset for at, offset in positions.items() if at.topic not in self.signals}

    def named(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The positions by the catalog's topics, as the log names them."""
        return {self._catalog_name(at): offset for at, offset in positions.items()}

    def _catalog_name(self, place: TopicPartition) -> TopicPartition:
        return TopicPartition(place.topic.removeprefix(self._names.prefix), place.partition)

    def _places(self, bus: Bus, topics: Iterable[Topic]) -> list[TopicPartition]:
        return [at for topic in topics for at in self._names.places(bus, topic)]
