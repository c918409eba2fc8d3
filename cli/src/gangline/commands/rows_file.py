"""Reads tables and the scores of an evaluation from a file: JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gangline.errors import CliError, ExitCode
from gangline.exchange.records import csv_rows
from gangline_schemas.limits import is_torn


def read_scores(path: Path) -> dict[str, float]:
    """Scores by item. Raises CliError that names file and line."""
    return _scores(path, _object(path) if path.suffix == ".json" else read_rows(path))


def read_rows(path: Path) -> Iterable[tuple[int, Any]]:
    """The rows of a .csv file, or the values of JSON lines, each with its line.

    Raises CliError that names file and line.
    """
    text = _text(path)
    return _cells(path, text) if path.suffix == ".csv" else _lines(path, text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # spreadsheets begin a file with a mark
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"{path} is not text in UTF-8", code=ExitCode.USAGE) from None


def _object(path: Path) -> Iterable[tuple[int, Any]]:
    found = _parsed(path, 1, _text(path))
    if not isinstance(found, dict):
        raise CliError(f"{path}: must be an object of items and scores", code=ExitCode.USAGE)
    return ((1, {"id": name, "score": value}) for name, value in found.items())


def _cells(path: Path, text: str) -> Iterable[tuple[int, Any]]:
    try:
        yield from enumerate(csv_rows(io.StringIO(text)), 2)
    except csv.Error as error:
        raise CliError(f"{path}: is not CSV: {error}", code=ExitCode.USAGE) from None


def _lines(path: Path, text: str) -> Iterable[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold other separators
        if line.strip():
            yield number, _parsed(path, number, line)


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path}:{number}: is not JSON: {error}", code=ExitCode.USAGE) from None


def _scores(path: Path, rows: Iterable[tuple[int, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for number, row in rows:
        where = f"{path}:{number}"
        if not isinstance(row, Mapping) or row.get("id") is None or row.get("score") is None:
            raise CliError(f"{where}: give an id and a score", code=ExitCode.USAGE)
        name = str(row["id"])
        if is_torn(name):
            raise CliError(f"{where}: id: is not text in Unicode", code=ExitCode.USAGE)
        try:
            value = float(row["score"])
        except (TypeError, ValueError, OverflowError):
            raise CliError(f"{where}: score: is not a number", code=ExitCode.USAGE) from None
        if not math.isfinite(value):
            text = f"{where}: score: must be finite; leave items without a score out"
            raise CliError(text, code=ExitCode.USAGE)
        if name in found:
            raise CliError(f"{where}: id {name} comes twice", code=ExitCode.USAGE)
        found[name] = value
    if not found:
        raise CliError(f"{path}: holds no scores", code=ExitCode.USAGE)
    return found
