"""A followed log: where its state begins, and after which records it is not exact."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gangline_bus.codec import decode, encode
from gangline_bus.fold import Folded, fold_record
from gangline_bus.memory import Broker
from gangline_bus.ports import Record, TopicPartition, TopicSettings
from gangline_bus.snapshot import Snapshots
from gangline_gateway import quota_state
from gangline_gateway.followed import NoStateError
from gangline_quota.core.decide import Quota
from gangline_quota.core.snapshot import codec
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.quota import TeamConfigured, UsageCharged
from gangline_schemas.team_limits import TeamConfig
from golden.record import Held

PLACE = TopicPartition(Quota().log, 0)
NOW = datetime(2026, 11, 24, tzinfo=UTC)
TEAMS = ("nlp", "vision", "speech")


@pytest.fixture
def broker() -> Broker:
    """A log of three teams."""
    found = Broker()
    bus = found.connect("quota")
    bus.create_topics([TopicSettings(PLACE.topic, 1, -1)])
    for seq, team in enumerate(TEAMS):
        event = TeamConfigured(config=TeamConfig(team=team, gpu_limit=8))
        envelope = Envelope(
            f"e-{seq}", "/test", NOW + timedelta(seconds=seq), team, event,
            position=LogPosition(0, 1, seq),
        )  # fmt: skip
        bus.writer().send(encode(envelope, topic=PLACE.topic, partition=0))
    return found


def records(broker: Broker) -> list[Record]:
    reader = broker.connect("test").reader("test")
    reader.assign({PLACE: 0})
    found: list[Record] = []
    while len(found) < len(TEAMS):
        found += reader.poll(10, 0.1)
    reader.close()
    return found


def snapshot(broker: Broker) -> Held:
    """As quota stores it after the last event."""
    folded = Folded(Quota().initial())
    for record in records(broker):
        fold_record(Quota(), folded, record)
    held = Held([])
    Snapshots(held, codec()).write(Quota().name, PLACE, folded, folded.offset)
    return held


def test_a_record_before_the_snapshot_ends_no_state(broker: Broker) -> None:
    """The tail reads it for its rings; its event may be one that this version does not know."""
    followed = quota_state.followed(snapshot(broker))
    followed.restore(broker.connect("gateway"), [PLACE], lambda: None)
    for record in records(broker)[:2]:
        assert not followed.apply(record, None, whole=False)
    (state,) = followed.copies().states()
    assert list(state.teams) == list(TEAMS)


def test_an_unknown_event_is_skipped_and_the_state_is_exact_no_more(broker: Broker) -> None:
    followed = quota_state.followed()
    followed.restore(broker.connect("gateway"), [PLACE], lambda: None)
    first, second, third = records(broker)
    assert followed.apply(first, decode(first), whole=True)
    assert followed.apply(second, None, whole=False), "that is news to readers, too"
    followed.apply(third, decode(third), whole=True)
    (state,) = followed.copies().known
    assert list(state.teams) == ["nlp", "speech"]
    with pytest.raises(NoStateError, match="upgrade the gateway"):
        followed.copies().states()


def test_an_event_that_cannot_be_folded_is_skipped(broker: Broker) -> None:
    followed = quota_state.followed()
    followed.restore(broker.connect("gateway"), [PLACE], lambda: None)
    first, second, third = records(broker)
    charged = UsageCharged(
        job_id="never-metered", attempt=1, team="nlp", gpus=1, allocated_at=NOW, released_at=NOW,
        gpu_seconds=0.0,
    )  # fmt: skip
    followed.apply(first, decode(first), whole=True)
    followed.apply(second, replace(decode(second), data=charged), whole=True)
    followed.apply(third, decode(third), whole=True)
    (state,) = followed.copies().known
    assert list(state.teams) == ["nlp", "speech"]
    with pytest.raises(NoStateError, match="KeyError"):
        followed.copies().states()
