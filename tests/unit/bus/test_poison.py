"""What is known of inputs that end their decider: as a note, and what it leads to."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline_bus.poison import SILENT, Guard, InputAt, Suspects, trace_of, trace_of_hang
from gangline_bus.ports import BusUnavailable, Record, TopicPartition

KAFKA_LIMIT = 4096
PLACE = TopicPartition("prefix.gangline.requests", 3)


def record(offset: int) -> Record:
    return Record(*PLACE, offset, b"k", b"v", (), 0)


class Process:
    """A guard whose notes outlive it. Inputs before `end` wait at its takeover."""

    def __init__(self, note: str = "", batch: int = 5, end: int = 0) -> None:
        self.notes, self.end = [note], end
        self.guard = Guard(note, self.notes.append, batch, {PLACE: end} if end else {})

    def decide(self, *offsets: int, deadly: int | None = None, silent: bool = False) -> None:
        """Decide these, a cycle each, until one kills."""
        for offset in offsets:
            self.guard.begin()
            try:
                with self.guard.deciding(record(offset)):
                    if offset == deadly:
                        raise KeyboardInterrupt if silent else ZeroDivisionError
            except (KeyboardInterrupt, ZeroDivisionError):
                return
            self.guard.passed()
            text = self.guard.settle({PLACE: offset + 1})
            self.guard.settled(text)
            if text is not None:
                self.notes.append(text)
            at = {PLACE: offset + 1}
            self.guard.advanced(lambda at=at: at)

    def heir(self) -> Process:
        return Process(self.notes[-1], end=self.end)


def test_a_process_that_gets_on_leaves_no_note() -> None:
    process = Process()
    process.decide(1, 2, 3)
    assert len(process.notes) == 3  # before its first batch, and when it had caught up
    assert process.notes[-1] == ""
    assert not process.heir().guard.cautious


def test_the_second_death_makes_an_input_poison() -> None:
    first = Process()
    first.decide(1, 2, deadly=2)
    second = first.heir()
    assert second.guard.poison(record(2)) is None
    second.decide(2, deadly=2)
    third = second.heir()
    found = third.guard.poison(record(2))
    assert found is not None
    assert found.deaths == 2
    assert found.trace.startswith("ZeroDivisionError at bus/test_poison.py:")
    assert third.guard.poison(record(3)) is None


def test_what_was_passed_is_forgotten() -> None:
    first = Process()
    first.decide(2, deadly=2)
    heir = first.heir()
    assert Suspects.read(heir.notes[-1]).known(record(2)) is not None
    heir.decide(2)
    assert Suspects.read(heir.notes[-1]).known(record(2)) is None


def test_a_death_without_a_word_is_found_by_going_one_by_one() -> None:
    process = Process()
    for cautious in (False, True, True):
        assert process.guard.cautious == cautious
        process.decide(1, deadly=1, silent=True)
        process = process.heir()
    found = process.guard.poison(record(1))
    assert found is not None
    assert (found.deaths, found.trace) == (2, SILENT)


def test_a_process_is_cautious_for_one_batch_alone() -> None:
    process = Process('{"lives":1}', batch=5, end=7)
    for offset in range(5):
        assert process.guard.cautious
        process.decide(offset)
    assert not process.guard.cautious
    process.decide(5)
    assert process.notes[-1] == '{"lives":2}'
    process.decide(6)
    assert process.notes[-1] == ""


def test_a_process_that_has_caught_up_is_cautious_no_longer() -> None:
    process = Process('{"lives":1}', batch=5, end=3)
    process.decide(0, 1)
    assert process.guard.cautious
    process.decide(2)
    assert not process.guard.cautious
    assert process.notes[-1] == ""


def test_a_death_after_the_first_batch_counts_while_inputs_wait() -> None:
    """Other partitions come first, a few inputs at a time, whatever process reads them."""
    process = Process(batch=5, end=20)
    process.decide(0, 1)
    process.decide(9, deadly=9, silent=True)
    assert process.heir().guard.cautious


@pytest.mark.parametrize(("note", "left"), [("", ""), ('{"lives":1}', '{"lives":1}')])
def test_an_orderly_end_before_it_has_caught_up_is_no_death(note: str, left: str) -> None:
    process = Process(note, batch=5, end=20)
    process.decide(*range(7))
    assert process.notes[-1] != left
    process.guard.stopped()
    assert process.notes[-1] == left


def test_what_kills_behind_a_long_backlog_is_reached_after_few_deaths() -> None:
    """Each further death before the end doubles for how long the next process is cautious."""
    deaths, begin, deadly = 0, 0, 600
    process = Process(batch=5, end=deadly + 1)
    while process.guard.poison(record(deadly)) is None:
        while process.guard.cautious and begin < deadly:
            process.decide(begin)
            begin += 1
        process.decide(deadly, deadly=deadly, silent=True)  # alone, or somewhere in a batch
        process, deaths = process.heir(), deaths + 1
        assert deaths < 11
    assert begin == deadly


def test_the_watchdog_blames_what_is_being_decided() -> None:
    process = Process()
    process.guard.begin()
    with process.guard.deciding(record(7)):
        process.guard.hangs(sys._getframe())
        note = process.notes[-1]
    assert '"hangs at bus/test_poison.py:' in note
    process.guard.hangs(sys._getframe())  # between two inputs none is to blame
    assert process.notes[-1] == note


def test_a_bus_that_is_away_hides_no_error() -> None:
    def away(_: str) -> None:
        raise BusUnavailable("away")

    guard = Guard("", away, 5, {})
    with pytest.raises(ZeroDivisionError), guard.deciding(record(1)):
        raise ZeroDivisionError


def test_a_note_always_fits() -> None:
    suspects = Suspects()
    topic = "p" * 100 + "gangline.checkpoints"
    for offset in range(50):
        for _ in range(3):
            suspects.blame(InputAt(topic, 99, 10**12 + offset), "x" * 999)
    suspects.trying = InputAt(topic, 99, 10**12)
    suspects.lives = 10**6
    assert len(suspects.note().encode()) < KAFKA_LIMIT
    assert Suspects.read(suspects.note()).note() == suspects.note()


@given(st.text() | st.sampled_from(['{"suspects":[1]}', '{"trying":{}}', "[]", '{"lives":[]}']))
def test_a_note_that_nobody_wrote_is_none(text: str) -> None:
    assert Suspects.read(text).note() == ""


def test_a_trace_holds_no_value() -> None:
    secret = "hunter2"
    with pytest.raises(ValueError, match=secret) as caught:
        int(secret)
    trace = trace_of(caught.value)
    assert secret not in trace
    assert "in test_a_trace_holds_no_value" in trace
    assert trace_of_hang(None) == "hangs at "
