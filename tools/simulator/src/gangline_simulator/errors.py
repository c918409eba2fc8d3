"""The error of a wrong input file of the simulator."""

from __future__ import annotations

from pathlib import Path


class BadInputError(Exception):
    """One sentence: the file, the row and field where there is one, and what is accepted."""

    def __init__(
        self, file: Path | str, message: str, *, row: int | None = None, field: str | None = None
    ) -> None:
        self.file, self.row, self.field = str(file), row, field
        place = str(file)
        if row is not None:
            place += f", row {row}"
        if field is not None:
            place += f", field {field}"
        super().__init__(f"{place}: {message}")
