"""The spool: nothing is lost by a crash or an absent bus, and its disk share is bounded."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_bus.memory import Broker
from gangline_bus.memory_broker import Faults
from gangline_bus.ports import BusUnavailable, OutRecord, TopicSettings
from gangline_worker.agent.spool.sender import Sender
from gangline_worker.agent.spool.spool import Position, Spool
from support.fixtures.small_disk import SmallDisk, mounted


def record(number: int, size: int = 10) -> OutRecord:
    value = f"{number:06d}".encode().ljust(size, b".")
    return OutRecord("topic", b"key", value, (("ce_id", f"id-{number}".encode()),))


def numbers(spool: Spool) -> list[int]:
    return [int(item.record.value[:6]) for item in spool.take(10_000, 0.0)]


def test_records_come_back_whole_and_in_order(tmp_path: Path):
    spool = Spool(tmp_path, sync=True, segment_bytes=200)
    sent = [record(number) for number in range(30)]
    for item in sent:
        spool.append(item)
    assert [item.record for item in spool.take(12, 0.0) + spool.take(100, 0.0)] == sent
    assert spool.take(1, 0.0) == []


def test_what_was_not_released_is_read_again_after_a_crash(tmp_path: Path):
    spool = Spool(tmp_path, sync=True, segment_bytes=200)
    for number in range(10):
        spool.append(record(number))
    taken = spool.take(7, 0.0)
    spool.release(taken[3].end)
    # No close: the process was killed.
    again = Spool(tmp_path, sync=True)
    again.append(record(10))
    assert numbers(again) == [4, 5, 6, 7, 8, 9, 10]


def test_a_disk_that_cannot_note_what_is_safe_costs_a_second_sending(tmp_path: Path):
    (tmp_path / "released.new").mkdir()  # what it is written to first cannot be opened
    spool = Spool(tmp_path, sync=True, segment_bytes=100)
    for number in range(10):
        spool.append(record(number))
    spool.release(spool.take(7, 0.0)[6].end)
    assert numbers(spool) == [7, 8, 9]
    again = numbers(Spool(tmp_path, sync=True))
    assert again[-3:] == [7, 8, 9]
    assert again == sorted(set(again))


def test_a_rewind_gives_out_again_what_is_not_safe(tmp_path: Path):
    spool = Spool(tmp_path, sync=False)
    for number in range(5):
        spool.append(record(number))
    spool.release(spool.take(2, 0.0)[1].end)
    assert numbers(spool) == [2, 3, 4]
    spool.rewind()
    assert numbers(spool) == [2, 3, 4]
    assert spool.waiting


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_torn_end_is_left_out(tmp_path: Path, cut: int):
    spool = Spool(tmp_path, sync=True)
    for number in range(3):
        spool.append(record(number))
    segment = max(tmp_path.glob("*.spool"))
    segment.write_bytes(segment.read_bytes()[:-cut])
    again = Spool(tmp_path, sync=True)
    again.append(record(3))
    assert numbers(again) == [0, 1, 3]


def damage(segment: Path) -> None:
    content = bytearray(segment.read_bytes())
    content[20] ^= 1
    segment.write_bytes(content)


def of_a_later_version(segment: Path) -> None:
    payload = b'{"form": 2}\n...'
    frame = struct.pack(">II", len(payload), zlib.crc32(payload)) + payload
    segment.write_bytes(frame + segment.read_bytes())


@pytest.mark.parametrize(
    ("harm", "left"), [(damage, [1, 2, 3]), (of_a_later_version, [0, 1, 2, 3])]
)
def test_a_record_that_cannot_be_read_costs_no_other(
    tmp_path: Path, harm: Callable[[Path], None], left: list[int]
):
    spool = Spool(tmp_path, sync=True)
    for number in range(3):
        spool.append(record(number))
    harm(max(tmp_path.glob("*.spool")))
    again = Spool(tmp_path, sync=True)
    again.append(record(3))
    assert numbers(again) == left
    assert again.damaged == 1


@pytest.mark.parametrize("segments", [1, 3], ids=["current", "earlier"])
def test_a_file_that_somebody_removed_costs_its_records_alone(tmp_path: Path, segments: int):
    spool = Spool(tmp_path, sync=True, segment_bytes=1)
    for number in range(segments):
        spool.append(record(number))
    min(tmp_path.glob("*.spool")).unlink()
    assert numbers(spool) == list(range(1, segments))
    spool.append(record(segments))
    assert numbers(spool) == [segments]
    assert spool.damaged == 1


def test_a_file_that_the_disk_does_not_give_ends_no_thread(tmp_path: Path):
    spool = Spool(tmp_path, sync=True, segment_bytes=1)
    for number in range(3):
        spool.append(record(number))
    bad = min(tmp_path.glob("*.spool"))
    bad.unlink()
    bad.mkdir()  # an error that reading it gives
    assert numbers(spool) == [1, 2]


def test_a_disk_that_is_read_only_now_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuses(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    spool = Spool(tmp_path, sync=True, memory_bytes=10_000)
    spool.append(record(0))
    monkeypatch.setattr(os, "write", refuses)
    monkeypatch.setattr(os, "unlink", refuses)
    spool.append(record(1))
    spool.release(spool.take(2, 0.0)[-1].end)
    spool.append(record(2))
    assert numbers(spool) == [2]


def test_a_file_of_another_name_is_left_alone(tmp_path: Path):
    (tmp_path / "000000000001 (copy).spool").touch()
    spool = Spool(tmp_path, sync=True)
    spool.append(record(0))
    assert numbers(spool) == [0]


def test_the_oldest_go_first_when_the_limit_is_reached(tmp_path: Path):
    spool = Spool(tmp_path, sync=False, limit_bytes=2000, segment_bytes=400)
    for number in range(200):
        spool.append(record(number))
    left = numbers(spool)
    assert left == list(range(200 - len(left), 200))
    assert spool.dropped == 200 - len(left) > 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*.spool")) <= 2500


def test_control_events_are_never_dropped(tmp_path: Path):
    spool = Spool(tmp_path, sync=True, segment_bytes=400)
    for number in range(200):
        spool.append(record(number))
    assert numbers(spool) == list(range(200))
    assert spool.dropped == 0


def test_segments_that_are_safe_are_deleted(tmp_path: Path):
    spool = Spool(tmp_path, sync=False, segment_bytes=200)
    for number in range(50):
        spool.append(record(number))
    spool.release(spool.take(50, 0.0)[-1].end)
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert not spool.waiting
    spool.release(Position(0, 0))
    assert not spool.waiting


class FailingDisk(SmallDisk):
    """Where nothing can be mounted: the system's answer, without the system."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self._patch = patch
        self._write = os.write

    def fill(self) -> None:
        def write(file: int, content: memoryview) -> int:
            if len(content) > 7:  # some bytes still fit
                return self._write(file, content[:7])
            raise OSError(errno.ENOSPC, "No space left on device")

        self._patch.setattr(os, "write", write)

    def clear(self) -> None:
        self._patch.setattr(os, "write", self._write)


@pytest.fixture(params=["mounted", "failing"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    if request.param == "failing":
        yield FailingDisk(tmp_path, request.getfixturevalue("monkeypatch"))
        return
    with mounted(tmp_path / "disk", "256k") as made:
        yield made


def test_what_a_full_disk_does_not_take_is_held_and_written_when_there_is_room(disk: SmallDisk):
    spool = Spool(disk.folder, sync=True, memory_bytes=10_000)
    spool.append(record(0))
    disk.fill()
    for number in range(1, 5):
        spool.append(record(number, size=5000 if number == 1 else 10))
    assert spool.trouble == "No space left on device"
    assert spool.held_bytes > 5000
    spool.release(spool.take(2, 0.0)[1].end)
    assert numbers(spool) == [2, 3, 4]
    spool.save()
    assert spool.held_bytes > 5000

    disk.clear()
    spool.save()

    assert (spool.trouble, spool.held_bytes) == (None, 0)
    spool.append(record(5))
    assert numbers(Spool(disk.folder, sync=True)) == [2, 3, 4, 5]
    assert numbers(spool) == [5]


def test_only_so_much_is_held_but_what_is_safe_counts_no_more(disk: SmallDisk):
    spool = Spool(disk.folder, sync=True, memory_bytes=700)
    disk.fill()
    for number in range(4):
        spool.append(record(number, size=100))
    with pytest.raises(OSError, match="No space"):
        spool.append(record(4, size=5000))
    taken = spool.take(100, 0.0)
    assert len(taken) == 4
    spool.release(taken[-1].end)
    spool.save()
    assert (spool.held_bytes, spool.waiting) == (0, False)
    assert spool.trouble == "No space left on device"  # nothing shows that it has room
    for number in range(5, 8):
        spool.append(record(number, size=100))
    assert numbers(spool) == [5, 6, 7]
    assert spool.waiting


def test_without_memory_an_append_fails_and_the_next_one_may_succeed(disk: SmallDisk):
    spool = Spool(disk.folder, sync=False, segment_bytes=100)
    for number in range(4):  # the next one needs a new segment
        spool.append(record(number, size=20))
    disk.fill()
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            spool.append(record(9, size=5000))
    disk.clear()
    spool.append(record(4))
    assert numbers(spool) == [0, 1, 2, 3, 4]


def test_what_is_held_goes_over_to_the_next_program_of_the_process(disk: SmallDisk):
    spool = Spool(disk.folder, sync=True, memory_bytes=10_000)
    spool.append(record(0))
    disk.fill()
    for number in range(1, 5):
        spool.append(record(number, size=5000 if number == 1 else 10))
    spool.release(spool.take(3, 0.0)[-1].end)
    spool.close()

    again = Spool(disk.folder, sync=True, memory_bytes=10_000)
    again.adopt(spool.unsaved())

    assert numbers(again) == [3, 4]
    disk.clear()
    again.save()
    assert numbers(Spool(disk.folder, sync=True))[-2:] == [3, 4]


@given(st.lists(st.sampled_from(["append", "take", "release", "rewind", "crash"]), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_history_delivers_each_record_at_least_once_in_order(
    tmp_path_factory: pytest.TempPathFactory, history: list[str]
):
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, sync=False, segment_bytes=120)
    appended, taken, safe = 0, [], -1
    for step in history:
        if step == "append":
            spool.append(record(appended))
            appended += 1
        elif step == "take":
            taken += spool.take(3, 0.0)
        elif step == "release" and taken:
            spool.release(taken[-1].end)
            safe = max(safe, int(taken[-1].record.value[:6]))
        elif step == "rewind":
            spool.rewind()
            taken = []
        elif step == "crash":
            spool = Spool(folder, sync=False, segment_bytes=120)
            taken = []
    spool.rewind()
    assert numbers(spool) == list(range(safe + 1, appended))


class Cut(Faults):
    """A bus that refuses now and then, by a list of what happens to each send."""

    def __init__(self, plan: list[bool]) -> None:
        self._plan = plan

    def at(self, point: str, client: str) -> None:
        if point == "send" and self._plan and not self._plan.pop(0):
            raise BusUnavailable("cut")


@pytest.fixture
def broker() -> Broker:
    found = Broker()
    found.connect("setup").create_topics([TopicSettings("topic", 1, -1)])
    return found


@pytest.fixture
def sender(tmp_path: Path, broker: Broker) -> Callable[[Spool], Sender]:
    def make(spool: Spool) -> Sender:
        return Sender("test", spool, broker.connect("agent").writer, droppable=False)

    return make


def test_the_sender_goes_on_where_the_bus_was_lost(
    tmp_path: Path, broker: Broker, sender: Callable[[Spool], Sender]
):
    spool = Spool(tmp_path, sync=False)
    for number in range(50):
        spool.append(record(number))
    broker.faults = Cut([True] * 20 + [False] + [True] * 5 + [False])
    sending = sender(spool)
    sending.start()
    assert sending.drain(20.0)
    sending.stop()
    arrived = [int(item.value[:6]) for item in broker.dump("topic")]
    assert sorted(set(arrived)) == list(range(50))
    firsts = sorted({number: arrived.index(number) for number in arrived}.items())
    assert [place for _, place in firsts] == sorted(place for _, place in firsts)
