"""The bus in memory beyond its contract: clients of several threads side by side."""

from __future__ import annotations

import pytest

from gangline_bus.memory import Broker
from gangline_bus.ports import OutRecord, TopicPartition, TopicSettings

PLACE = TopicPartition("t", 0)


def test_open_transactions_of_others_are_looked_at_under_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    bus = broker.connect("a")
    bus.create_topics([TopicSettings("t", 1, -1)])
    bus.writer().send(OutRecord("t", None, b"x", ()))
    reader = bus.reader("r")
    reader.assign({PLACE: 0})
    held: list[bool] = []

    def stable_end(looked_at: Broker, _: TopicPartition) -> int:
        held.append(looked_at.lock._is_owned())  # type: ignore[attr-defined]
        return 1

    monkeypatch.setattr(Broker, "stable_end", stable_end)
    assert bus.end_offsets([PLACE]) == {PLACE: 1}
    assert len(reader.poll(1, 0.0)) == 1
    assert held == [True, True]
