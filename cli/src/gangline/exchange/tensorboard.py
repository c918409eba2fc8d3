"""Runs as event files for TensorBoard, and their new points while they run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gangline.exchange.event_writer import OWN_FILES, EventWriter
from gangline.exchange.export import ExportedRun
from gangline.exchange.records import Point
from gangline.sdk import Gangline
from gangline_schemas.system_metrics import PREFIX

_UNSAFE = re.compile(r"[^\w.=-]+")


def folder_of(run: ExportedRun) -> str:
    """Its directory: a job's run by its id, one of MLflow by its name and the start of its id."""
    if run.is_job:
        return run.run_id
    name = _UNSAFE.sub("_", str(run.row["name"])).strip("._")[:80]
    return f"{name}-{run.run_id[:8]}" if name else run.run_id


@dataclass
class _Written:
    """A run's file, the newest point of each metric, and the largest steps of two polls."""

    run: ExportedRun
    writer: EventWriter
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    steps: tuple[int | None, int | None] = (None, None)


class RunFiles:
    """The event files of runs in `logdir`. Use it as a context manager; `poll` adds new points."""

    def __init__(self, client: Gangline, logdir: Path, runs: Sequence[ExportedRun]) -> None:
        self._client = client
        self._stack = ExitStack()
        self._written = []
        for run in runs:
            folder = logdir / folder_of(run)
            for old in folder.glob(OWN_FILES):
                old.unlink()
            writer = self._stack.enter_context(EventWriter(folder))
            started = run.row.get("started_at") or run.row.get("submitted_at")
            writer.add_parameters(run.params, round(started.timestamp() * 1000) if started else 0)
            self._written.append(_Written(run, writer))

    def __enter__(self) -> Self:
        """The files are there, with the parameters only."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._stack.close()

    def poll(self, now: Sequence[ExportedRun] | None = None) -> int:
        """Write the points that are new since the last time; gives their number.

        `now`: the runs as they are now. Raises CliError.
        """
        for written, run in zip(self._written, now or (), strict=False):
            if run.row.get("attempts") != written.run.row.get("attempts"):
                written.steps = (None, None)  # steps come again
            written.run = run
        return sum(written.writer.add(self._new(written)) for written in self._written)

    def _new(self, written: _Written) -> Iterator[Point]:
        first, last = written.steps
        newest = dict(written.newest)
        most = last
        for page in self._client.points(
            [written.run.run_id], kind="job" if written.run.is_job else "mlflow", first=first
        ):
            for line in page.splitlines():
                point = _point(line)
                at = (point.time_ms, point.step)
                if not point.name.startswith(PREFIX):  # the steps of those are times
                    most = point.step if most is None else max(most, point.step)
                if at > written.newest.get(point.name, (-math.inf, 0)):
                    newest[point.name] = max(at, newest.get(point.name, at))
                    yield point
        # Points of one step come within the time of one poll: ask for those of the last two again.
        written.newest, written.steps = newest, (last, most)


def _point(line: bytes) -> Point:
    row = json.loads(line)
    value = row["value"]
    return Point(
        row["name"], row["step"], row["time_ms"], math.nan if value is None else float(value)
    )
