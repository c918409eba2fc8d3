"""A death is put down to memory if the kernel killed a process in that group just then."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline_worker.agent.isolation import oom
from gangline_worker.agent.isolation.oom import WINDOW_S, OomKills


class Kernel:
    """Groups as folders, one process in one of them, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.now_s = 0.0
        self.group = "agent"
        self.kills = {"agent": 3, "gang": 0}
        self._write()
        monkeypatch.setattr(oom, "group_of", lambda _: self.folder / self.group)

    def _write(self) -> None:
        for name, kills in self.kills.items():
            (self.folder / name).mkdir(exist_ok=True)
            text = f"low 0\nmax 7\noom 9\noom_kill {kills}\noom_group_kill 0\n"
            (self.folder / name / "memory.events").write_text(text)

    def kill(self, group: str) -> None:
        self.kills[group] += 1
        self._write()

    def pass_s(self, seconds: float, *watched: OomKills) -> None:
        for _ in range(round(seconds)):
            self.now_s += 1.0
            for item in watched:
                item.count()

    def watch(self) -> OomKills:
        return OomKills(7, lambda: self.now_s)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def test_a_kill_just_before_the_end_explains_it(kernel: Kernel) -> None:
    rank = kernel.watch()
    for run_s in (0.0, 1.0, 60.0):
        kernel.pass_s(run_s, rank)
        assert not rank.lately()
        kernel.kill("agent")
        assert rank.lately()
        kernel.pass_s(2 * WINDOW_S, rank)


def test_a_kill_of_somebody_else_long_ago_does_not(kernel: Kernel) -> None:
    rank = kernel.watch()
    kernel.kill("agent")
    kernel.pass_s(2 * WINDOW_S, rank)
    assert not rank.lately()


def test_what_the_agent_s_group_counted_is_not_its_gang_s(kernel: Kernel) -> None:
    rank = kernel.watch()
    kernel.group = "gang"  # which it entered when it was released
    kernel.kill("agent")
    assert not rank.lately()
    kernel.kill("gang")
    assert rank.lately()


def no_group(_: object) -> Path:
    raise OSError("no such process, or there are no control groups of version 2")


@pytest.mark.parametrize("kills", [0, 1])
def test_a_pod_that_collected_the_process_still_has_its_group(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    rank = kernel.watch()
    for _ in range(kills):
        kernel.kill("agent")
    monkeypatch.setattr(oom, "group_of", no_group)
    assert rank.lately() == (kills > 0)


def test_without_such_groups_nothing_is_said(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oom, "group_of", no_group)
    rank = kernel.watch()
    kernel.kill("agent")
    assert not rank.lately()
