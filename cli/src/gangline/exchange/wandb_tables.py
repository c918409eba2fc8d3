"""Runs that a script has saved with W&B's public API: a history file and JSON beside it.

`history.csv|jsonl|json|parquet` has the rows of `run.history()` or `run.scan_history()`. Beside it
may be `config.json`, `summary.json` and `metadata.json` with `id`, `name`, `project` and `state`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gangline.exchange.parquet import pyarrow
from gangline.exchange.records import (
    Point,
    SourceError,
    SourceRun,
    csv_rows,
    files_below,
    flat,
    lines_of,
    whole_text,
)
from gangline.exchange.wandb_values import points_of, run_texts, time_ms

SUFFIXES = (".csv", ".jsonl", ".ndjson", ".json", ".parquet")
NAME = "history"
_STATES = {"failed": "FAILED", "crashed": "FAILED", "killed": "KILLED", "running": "RUNNING"}


def histories(path: Path) -> list[Path]:
    """The history files below a directory, or the file itself."""
    if path.is_file():
        return [path] if path.suffix in SUFFIXES else []
    return [file for file in files_below(path, f"*{NAME}.*") if file.suffix in SUFFIXES]


class WandbTables:
    """All history files below a directory, or one file."""

    kind = "W&B export"

    def __init__(self, path: Path) -> None:
        self._files = histories(path)

    def runs(self) -> Iterator[SourceRun | SourceError]:
        """A run for each history."""
        for file in self._files:
            try:
                yield _run(file)
            except SourceError as error:
                yield error


def _run(file: Path) -> SourceRun:
    prefix = file.stem.removesuffix(NAME)
    config, summary, facts = (
        _object(file.parent / f"{prefix}{part}.json") for part in ("config", "summary", "metadata")
    )
    folder = file.resolve().parent.name if file.stem == NAME else prefix.strip("-_.") or file.stem
    run_id, project = str(facts.get("id") or folder), str(facts.get("project") or "")
    run = SourceRun(
        f"wandb/{project}/{run_id}",
        str(facts.get("name") or folder),
        lambda run: _points(file, run),
        project=project,
        state=_STATES.get(str(facts.get("state", "")), "FINISHED"),
    )
    logged: set[str] = set()
    for row in _checked_rows(file, run):
        logged |= flat(row).keys()
        if (at_ms := time_ms(row)) is not None:
            run.started_ms = min(run.started_ms or at_ms, at_ms)
            run.ended_ms = max(run.ended_ms or at_ms, at_ms)
    own = {name: str(facts[name]) for name in ("notes", "group", "tags") if facts.get(name)}
    run.params, run.tags = run_texts(config, summary, own, logged)
    return run


def _points(file: Path, run: SourceRun) -> Iterator[Point]:
    for number, row in enumerate(_checked_rows(file, run)):
        yield from points_of(row if "_step" in row else {**row, "_step": number}, run)


def _checked_rows(file: Path, run: SourceRun) -> Iterator[dict[str, Any]]:
    """The rows before the first that cannot be read, which becomes a trouble of the run."""
    try:
        yield from _ROWS[file.suffix](file)
    except (OSError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        run.troubles.append(f"{file}: {str(error).splitlines()[0]}")


def _object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    if not file.resolve().is_relative_to(file.parent.resolve()):
        raise SourceError(file, "is a link to a file elsewhere")
    try:
        found = json.loads(whole_text(file))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(file, f"no readable JSON: {error}") from None
    if not isinstance(found, dict):
        raise SourceError(file, "no JSON object")
    return found


def _csv(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8-sig", newline="") as opened:
        for row in csv_rows(lines_of(opened), strict=True):
            if None in row:
                raise ValueError("a row has more cells than the header")
            yield {name: _cell(text) for name, text in row.items() if name}


def _cell(text: str | None) -> object:
    """A number where it is one; pandas writes True and False."""
    if text in {"True", "False"}:
        return text == "True"
    try:
        return float(text or "")
    except ValueError:
        return text


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8-sig") as opened:
        for number, line in enumerate(lines_of(opened), 1):
            if line.strip():
                try:
                    yield _row(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from None


def _json(file: Path) -> Iterator[dict[str, Any]]:
    found = json.loads(whole_text(file))
    if not isinstance(found, list):
        raise ValueError("no JSON list of rows")  # noqa: TRY004 - the content is wrong
    for row in found:
        yield _row(row)


def _row(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("a row is no JSON object")  # noqa: TRY004 - the content is wrong
    return found


def _parquet(file: Path) -> Iterator[dict[str, Any]]:
    arrow, parquet = pyarrow()
    try:
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches():
                yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise ValueError(str(error)) from None


_ROWS = {
    ".csv": _csv, ".jsonl": _lines, ".ndjson": _lines, ".json": _json, ".parquet": _parquet,
}  # fmt: skip
