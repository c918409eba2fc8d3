"""What is larger than the bus takes is refused at once, by the client and before an own log."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline_bus import log_writer
from gangline_bus.decision import Decision, Tick
from gangline_bus.fold import Folded
from gangline_bus.kafka_client import PRODUCER
from gangline_bus.kafka_denials import Denials
from gangline_bus.kafka_writers import KafkaWriter
from gangline_bus.log_writer import LogWriter
from gangline_bus.ports import (
    MAX_RECORD_BYTES,
    BusError,
    BusUnavailable,
    OutRecord,
    TopicPartition,
)
from gangline_quota.core.decide import Quota
from gangline_quota.core.state import State
from gangline_schemas.events.quota import TeamConfigured
from gangline_schemas.team_limits import TeamConfig

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 50}


def test_a_record_above_the_clients_limit_is_no_outage() -> None:
    """An outage would be waited for, and such a record is never taken."""
    writer = KafkaWriter({**PRODUCER, **NOBODY}, Denials({}))
    largest = MAX_RECORD_BYTES - 65_536
    writer.send(OutRecord("t", b"k", b"x" * largest))
    with pytest.raises(BusError, match="MSG_SIZE_TOO_LARGE") as refused:
        writer.send(OutRecord("t", b"k", b"x" * (MAX_RECORD_BYTES + 200)))
    assert not isinstance(refused.value, BusUnavailable)
    writer.close()


def test_a_decision_that_the_bus_would_not_take_changes_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quota, folded = Quota(), Folded(State())
    writer = LogWriter(quota, TopicPartition("q", 0), folded, instance="i", release="0")
    decision = Decision("a", TeamConfigured(config=TeamConfig(team="a", gpu_limit=1)))
    now = datetime(2026, 11, 21, tzinfo=UTC)

    monkeypatch.setattr(log_writer, "_MAX_EVENT_BYTES", 10)
    with pytest.raises(ValueError, match=r"team\.configured is larger than the bus takes"):
        writer.write(decision, Tick(), 0, now, None)
    assert (folded.state.teams, folded.next_seq) == ({}, 0)

    monkeypatch.undo()
    writer.write(decision, Tick(), 0, now, None)
    assert list(folded.state.teams) == ["a"]
