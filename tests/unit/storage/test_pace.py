"""A file that is read no faster than a pace allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_storage import LocalStore
from gangline_storage.pace import Pace, paced


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("read", [-1, 1, 700_000, 5_000_000])
def test_all_of_it_comes_in_its_time(tmp_path: Path, read: int) -> None:
    data = bytes(range(256)) * (10_000 if read != 1 else 4)
    (tmp_path / "f").write_bytes(data)
    clock = Clock()
    pace = Pace(1000.0, clock=lambda: clock.now_s, pause=clock.pause)
    with (tmp_path / "f").open("rb") as plain, paced(plain, pace) as slow:
        found = b"".join(iter(lambda: slow.read(read), b""))
    assert found == data
    assert clock.now_s == pytest.approx(len(data) / 1000.0)


def test_a_rest_is_not_made_up_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    clock = Clock()
    pace = Pace(10.0, clock=lambda: clock.now_s, pause=clock.pause)
    clock.now_s = 1000.0
    with (tmp_path / "f").open("rb") as plain, paced(plain, pace) as slow:
        LocalStore(tmp_path / "store").put("a/b", slow)
    assert clock.now_s == pytest.approx(1010.0)
    assert LocalStore(tmp_path / "store").get("a/b") == b"x" * 100


def test_two_files_share_a_pace(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    clock = Clock()
    pace = Pace(10.0, clock=lambda: clock.now_s, pause=clock.pause)
    with (tmp_path / "f").open("rb") as one, (tmp_path / "f").open("rb") as two:
        first, second = paced(one, pace), paced(two, pace)
        first.read()
        second.read()
    assert clock.now_s == pytest.approx(20.0)
