"""States of a past time: near which kept state a fold starts, and which snapshots it trusts."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from gangline_bus.codec import encode
from gangline_bus.fold import Folded, LogBroken, fold_log, fold_on
from gangline_bus.memory import Broker
from gangline_bus.ports import TopicPartition, TopicSettings
from gangline_bus.snapshot import Snapshots
from gangline_gateway import state_history
from gangline_gateway.problems import ProblemError
from gangline_gateway.state_history import StateHistory
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.core.state import State
from gangline_schemas.envelope import Envelope, LogPosition
from golden.record import Held
from support.builders.live_job import queued

PLACE = TopicPartition(Scheduler().log, 0)
START = datetime(2026, 11, 24, tzinfo=UTC)
COUNT = 60


def log_of(count: int, name: str = "j") -> Broker:
    """A log of jobs that were queued, a second apart."""
    found = Broker()
    bus = found.connect("scheduler")
    bus.create_topics([TopicSettings(PLACE.topic, 1, -1)])
    for seq in range(count):
        envelope = Envelope(
            f"{name}-{seq}", "/test", at(seq), f"{name}{seq}", queued(f"{name}{seq}"),
            position=LogPosition(0, 1, seq),
        )  # fmt: skip
        bus.writer().send(encode(envelope, topic=PLACE.topic, partition=0))
    return found


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def jobs(found: StateHistory, second: float) -> int:
    shards, events = found.shards(at(second))
    assert len(shards[0].state.jobs) == events
    return events


def folded(broker: Broker, until: float) -> Folded[State]:
    return fold_log(broker.connect("t"), Scheduler(), PLACE, until=at(until))


@pytest.fixture
def broker() -> Broker:
    return log_of(COUNT)


def test_times_in_any_order_give_the_state_of_each(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_history, "EVERY", 5)
    monkeypatch.setattr(state_history, "KEPT", 4)
    found = StateHistory(broker.connect("t"), [PLACE])
    for second in (59, 10, 58.5, 0, 30, 31, 29, 59, 1):
        assert jobs(found, second) == int(second) + 1
    kept = [one.seq for one in found._states[PLACE].kept]
    assert len(kept) <= 4
    assert kept == sorted(kept)


def test_kept_states_stay_spread_however_many_come(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_history, "EVERY", 5)
    monkeypatch.setattr(state_history, "KEPT", 4)
    found = StateHistory(broker.connect("t"), [PLACE])
    states = found._states[PLACE]
    for second in range(COUNT):
        states.keep(folded(broker, second), apart=1)
    seqs = [one.seq for one in states.kept]
    assert (seqs[0], seqs[-1], len(seqs)) == (1, COUNT, 4)
    assert max(after - before for before, after in pairwise(seqs)) <= COUNT / 2
    count = jobs(found, seqs[1] + 9)
    assert min(abs(one.seq - count) for one in states.kept) < 5


def test_a_kept_state_is_not_changed_by_folds_that_start_there(broker: Broker) -> None:
    found = StateHistory(broker.connect("t"), [PLACE])
    assert jobs(found, 20) == 21
    found._states[PLACE].keep(folded(broker, 20), apart=1)
    assert (jobs(found, 40), jobs(found, 20)) == (41, 21)


def test_a_question_about_a_later_time_starts_at_the_last_answer(broker: Broker) -> None:
    found = StateHistory(broker.connect("t"), [PLACE])
    assert jobs(found, 40) == 41
    assert found._start(PLACE, at(40)).next_seq == 41
    assert found._start(PLACE, at(59)).next_seq == 41
    assert found._start(PLACE, at(39)).next_seq == 0


def test_before_the_first_decision_there_is_nothing(broker: Broker) -> None:
    found = StateHistory(broker.connect("t"), [PLACE])
    assert found.earliest() is not None
    with pytest.raises(ProblemError, match="before the first decision"):
        found.shards(at(-1))
    assert StateHistory(log_of(0).connect("t"), [PLACE]).earliest() is None


def stored(broker: Broker, until: float) -> Held:
    held = Held([])
    state = folded(broker, until)
    snapshots = Snapshots(held, codec(Scheduler().initial))
    snapshots.write(Scheduler().name, PLACE, state, state.offset)
    return held


def test_a_fold_starts_at_a_stored_snapshot_of_this_log(broker: Broker) -> None:
    found = StateHistory(broker.connect("t"), [PLACE], stored(broker, 30))
    assert jobs(found, 45) == 46
    assert [one.seq for one in found._states[PLACE].kept] == [31]
    assert jobs(found, 10) == 11


def test_a_snapshot_of_another_log_is_skipped(broker: Broker) -> None:
    found = StateHistory(broker.connect("t"), [PLACE], stored(log_of(COUNT, "other"), 30))
    assert jobs(found, 45) == 46
    assert "other1" not in found.shards(at(45))[0][0].state.jobs


def test_a_snapshot_that_cannot_be_read_is_skipped(broker: Broker) -> None:
    held = stored(broker, 30)
    head = held.held[0].split(b"\n")[1] + b"\nnot compressed"
    held.held.append(hashlib.sha256(head).hexdigest().encode() + b"\n" + head)
    found = StateHistory(broker.connect("t"), [PLACE], held)
    assert jobs(found, 45) == 46
    assert [one.seq for one in found._states[PLACE].kept] == [31]


def test_a_state_of_another_log_cannot_be_continued(broker: Broker) -> None:
    for other, until in ((log_of(COUNT, "other"), 30), (log_of(2 * COUNT), 2 * COUNT - 1)):
        with pytest.raises(LogBroken, match="is not there"):
            fold_on(broker.connect("t"), Scheduler(), PLACE, folded(other, until), at(45))
