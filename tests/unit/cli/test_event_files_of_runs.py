"""Runs as event files for TensorBoard: new points follow, and none comes twice."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gangline.exchange.records import Point
from gangline.exchange.tensorboard import RunFiles
from support.fakes.points import FakePoints, client, exported, losses


def test_new_points_follow_and_none_comes_twice(tmp_path: Path) -> None:
    points = FakePoints(losses(0, 5))
    with RunFiles(client(points), tmp_path, [exported("a")]) as files:
        counts = [files.poll()]
        for page in (losses(0, 5), losses(0, 7), [*losses(0, 7), Point("eval", 5, 7_000, 0.5)]):
            points.pages = (page,)
            counts.append(files.poll([exported("a")]))
        points.pages = ([*losses(0, 3), *losses(3, 6, late_ms=60_000)],)
        counts.append(files.poll([exported("a", attempts=2)]))
    assert counts == [5, 0, 2, 1, 3]
    assert [asked["first"] for asked in points.asked] == [None, None, 4, 4, None]
    read = EventAccumulator(str(tmp_path / "a"))
    read.Reload()
    assert [item.step for item in read.Scalars("loss")] == [*range(7), 3, 4, 5]
    assert [item.step for item in read.Scalars("eval")] == [5]


def test_steps_of_system_metrics_which_are_times_hide_no_later_step(tmp_path: Path) -> None:
    cpu = Point("system/node-1/cpu_utilization_percentage", 1_795_000_000, 1_000, 40.0)
    points = FakePoints()
    with RunFiles(client(points), tmp_path, [exported("a")]) as files:
        counts = []
        for steps in (5, 7, 9, 11):
            points.pages = ([*losses(0, steps), cpu],)
            counts.append(files.poll([exported("a")]))
    assert counts == [6, 2, 2, 2]
