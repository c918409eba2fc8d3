"""A run in whatever format it comes: its texts, and its points that are read as often as needed."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TextIO

PARENT = "mlflow.parentRunId"
"""The tag of a nested run."""

_LARGEST = 1 << 63
LARGEST_TEXT: Final = 128 << 20
LONGEST_LINE: Final = 16 << 20
"""Characters of a file that is read whole, and of one line of others."""


class Point(NamedTuple):
    """One value of a metric. `time_ms`: Unix time."""

    name: str
    step: int
    time_ms: int
    value: float


class SourceError(Exception):
    """A file cannot be read; the message says which and why."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")


@dataclass
class SourceRun:
    """One run of a source. `source_id` is the same each time that the source is read.

    `read` gives the points; while it does, it adds what it must leave out to `left` and what is
    wrong with a file to `troubles`. It raises SourceError if it cannot begin.
    """

    source_id: str
    name: str
    read: Callable[[SourceRun], Iterator[Point]]
    project: str = ""
    state: str = "FINISHED"
    """One of MLflow's: RUNNING, SCHEDULED, FINISHED, FAILED, KILLED."""
    started_ms: int | None = None
    ended_ms: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    """How many things of each kind cannot be imported."""
    troubles: list[str] = field(default_factory=list)

    def points(self) -> Iterator[Point]:
        """All points, from the start."""
        self.left.clear()
        self.troubles.clear()
        for point in self.read(self):
            name, step, time_ms, value = point
            if (type(name), type(step), type(time_ms)) != (str, int, int):
                self.left["points without a readable name, step or time"] += 1
            elif type(value) not in {int, float}:
                self.left["points whose value is not a number"] += 1
            elif -_LARGEST <= min(step, time_ms) <= max(step, time_ms) < _LARGEST:
                yield point
            else:
                self.left["points with a step or a time out of range"] += 1


def files_below(path: Path, pattern: str) -> list[Path]:
    """The files below a directory with such a name, or the file itself. Pipes are left out."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob(pattern) if file.is_file())


def csv_rows(lines: Iterable[str], *, strict: bool = False) -> csv.DictReader[str]:
    """Rows by the names in the first line. A cell may be as long as a line, in this process."""
    csv.field_size_limit(LONGEST_LINE)
    return csv.DictReader(lines, strict=strict)


def whole_text(file: Path) -> str:
    """The text of a file. Raises OSError; ValueError if it is too large or not UTF-8."""
    with file.open(encoding="utf-8") as opened:
        text = opened.read(LARGEST_TEXT + 1)
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"larger than {LARGEST_TEXT >> 20} MiB")
    return text


def lines_of(opened: TextIO) -> Iterator[str]:
    """Lines of text. Raises OSError; ValueError if one is too long or not UTF-8."""
    while line := opened.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"a line is longer than {LONGEST_LINE >> 20} MiB")
        yield line


class Source(Protocol):
    """A directory or a file with runs."""

    kind: str
    """The format in words: "MLflow directory"."""

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """The runs, and an error for each that cannot be read at all."""


def as_text(value: object) -> str:
    """A parameter's value as text: JSON if it is not a text already."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def flat(value: Mapping[str, object], prefix: str = "", by: str = ".") -> dict[str, object]:
    """Nested mappings as one, with joined names."""
    found: dict[str, object] = {}
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping) and item:
            found |= flat(item, f"{name}{by}", by)
        else:
            found[name] = item
    return found
