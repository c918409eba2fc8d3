"""A CSV file, plain or gzip: its rows by their number, its columns by any of their usual names."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gangline_simulator.errors import BadInputError


class Table:
    """The rows of one file. `row` counts as an editor does: the header is row 1."""

    def __init__(
        self, path: Path, synonyms: Mapping[str, Sequence[str]], chosen: Mapping[str, str]
    ) -> None:
        """Match the columns. Raises BadInputError for a file or a column that is not there."""
        self.path = path
        self._synonyms = synonyms
        lines = _lines(path)
        header = [name.strip() for name in next(lines, (1, []))[1]]
        if not header:
            raise BadInputError(path, "is empty; the first row names the columns", row=1)
        self._rows = lines
        self._header = header
        self._place: dict[str, int] = {}
        by_name = {_plain(name): index for index, name in reversed(list(enumerate(header)))}
        for field, names in synonyms.items():
            if field in chosen:
                if chosen[field] not in header:
                    raise BadInputError(
                        path,
                        f"there is no column {chosen[field]}; there are {', '.join(header)}",
                        row=1,
                        field=field,
                    )
                self._place[field] = header.index(chosen[field])
                continue
            found = next((by_name[name] for name in names if name in by_name), None)
            if found is not None:
                self._place[field] = found

    def has(self, *fields: str) -> bool:
        """Whether the file has a column for each of these fields."""
        return all(field in self._place for field in fields)

    def require(self, *fields: str, way_out: str) -> None:
        """Raise BadInputError unless there is a column for each of these fields."""
        for field in fields:
            if field not in self._place:
                raise BadInputError(
                    self.path,
                    f"no column for it; accepted names: {', '.join(self._synonyms[field])}; "
                    f"the file has {', '.join(self._header)}; {way_out}",
                    row=1,
                    field=field,
                )

    def rows(self) -> Iterator[Row]:
        """The rows that hold anything, in order."""
        for number, cells in self._rows:
            if any(cell.strip() for cell in cells):
                yield Row(self, number, cells)

    def cell(self, number: int, cells: Sequence[str], field: str) -> str:
        """The text of a field; raises BadInputError when the row is too short."""
        place = self._place[field]
        if place >= len(cells):
            raise BadInputError(
                self.path,
                f"the row has {len(cells)} cells and {self._header[place]} is column {place + 1}",
                row=number,
                field=field,
            )
        return cells[place].strip()


class Row:
    """One row. Its accessors raise BadInputError that names file, row and field."""

    __slots__ = ("_cells", "_table", "number")

    def __init__(self, table: Table, number: int, cells: Sequence[str]) -> None:
        self._table, self.number, self._cells = table, number, cells

    def text(self, field: str, default: str = "") -> str:
        """The text; `default` when the file has no such column or the cell is empty."""
        if not self._table.has(field):
            return default
        return self._table.cell(self.number, self._cells, field) or default

    def number_of(self, field: str, *, default: float | None = None) -> float:
        """A number that is not negative."""
        text = self.text(field)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise self.bad(field, f"{text!r} is no number; accepted: a number from 0 up") from None
        if not math.isfinite(value) or value < 0:
            raise self.bad(field, f"{text} is out of range; accepted: a number from 0 up")
        return value

    def count(self, field: str, *, default: int | None = None) -> int:
        """A whole number that is not negative; 4.0 counts as one."""
        value = self.number_of(field, default=default)
        if value != int(value):
            raise self.bad(field, f"{value:g} is no whole number; accepted: 0, 1, 2, ...")
        return int(value)

    def bad(self, field: str, message: str) -> BadInputError:
        """The error for one field of this row."""
        return BadInputError(self._table.path, message, row=self.number, field=field)


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for cells in reader:
                yield reader.line_num, cells
    except OSError as error:
        raise BadInputError(path, f"cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInputError(path, f"is no CSV file in UTF-8: {error}") from None
