"""Batches that cannot be read are passed over, and nothing beside them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline_bus.kafka_damage import BadBatches
from gangline_bus.ports import Record, TopicPartition

PLACE = TopicPartition("gangline.requests", 1)


class Partition:
    """Batches of so many records, good or bad, read by a client that can only seek."""

    def __init__(self, batches: list[tuple[int, bool]]) -> None:
        self.bases: list[int | None] = []
        for size, bad in batches:
            self.bases += [len(self.bases) if bad else None] * size
        self.length = len(self.bases)

    def read(self) -> tuple[list[int], list[Record], int]:
        """Offsets of good records, what stands for bad ones, and how many probes there were."""
        position, probes, good, passed_over = 0, 0, [], []
        bad = BadBatches(lambda _, to: sought.append(to), lambda _: self.length)
        sought = [0]
        while True:
            at = sought[-1]
            probes += 1
            base = self.bases[at] if at < self.length else None
            if base is not None:
                found = bad.failed(PLACE, base, position)
            elif bad.searching(PLACE):
                found = bad.passed(PLACE)
            elif at >= self.length:
                return good, passed_over, probes
            else:
                good.append(at)
                position = at + 1
                sought.append(position)
                continue
            if found is not None:
                passed_over.append(found.record)
                position = found.end


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=8))
def test_every_record_that_can_be_read_is_read_once(batches: list[tuple[int, bool]]) -> None:
    partition = Partition(batches)
    good, passed_over, _ = partition.read()
    assert good == [at for at, base in enumerate(partition.bases) if base is None]
    firsts = sorted({base for base in partition.bases if base is not None})
    assert [record.offset for record in passed_over] == firsts
    assert all("cannot be read" in record.damage for record in passed_over)


def test_a_batch_of_a_million_records_takes_few_tries() -> None:
    good, passed_over, probes = Partition([(3, False), (1_000_000, True), (2, False)]).read()
    assert good == [0, 1, 2, 1_000_003, 1_000_004]
    assert [record.offset for record in passed_over] == [3]
    assert "up to offset 1000002" in passed_over[0].damage
    assert probes < 60
