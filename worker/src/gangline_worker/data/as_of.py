"""Point-in-time joins: each row gets the features that were known at its time, and no later ones.

A feature that became known after the row's time would tell a model what it must predict. So of the
feature rows with the row's keys the newest one counts whose time is not after the row's. Of several
with the same time the last one in the file counts. A row without such features has nulls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from gangline_storage.durable import replace_file
from gangline_worker.data.errors import DataError

_US = 1_000_000
_READERS = {
    ".parquet": pq.read_table,
    ".csv": pyarrow.csv.read_csv,
    ".jsonl": pyarrow.json.read_json,
    ".ndjson": pyarrow.json.read_json,
}
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Source:
    """A table, and the file that messages name."""

    path: Path
    table: Any

    def column(self, name: str) -> Any:
        """A column as one array. Raises DataError if it is not there, or has nulls."""
        if name not in self.table.column_names:
            known = ", ".join(self.table.column_names)
            raise DataError(f"{self.path}: has no column {name}; it has {known}")
        found = self.table.column(name).combine_chunks()
        if found.null_count:
            raise DataError(
                f"{self.path}: column {name} is missing in {found.null_count:,} rows; leave them "
                "out, or fill it in"
            )
        return found


@dataclass(frozen=True)
class Rules:
    """`keys` and `time` are columns of each table. Features count `delay_s` after their time."""

    keys: tuple[str, ...]
    time: str
    delay_s: float = 0.0
    max_age_s: float | None = None


@dataclass(frozen=True)
class Joined:
    """The rows with their features, and for how many rows each source had some."""

    table: Any
    matched: tuple[int, ...]


def read_source(path: Path) -> Source:
    """A table of Parquet, CSV or JSON lines. Raises DataError or OSError."""
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: is none of {', '.join(_READERS)}")
    try:
        return Source(path, reader(path))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: {error}") from None


def join(rows: Source, features: Sequence[Source], rules: Rules) -> Joined:
    """The columns of `rows`, in their order, then those of each source without keys and time.

    Cost: a sort of both tables for each source.

    Raises:
        DataError: a column is missing, has nulls or another type, or two sources have it.
    """
    found, matched = rows.table, []
    taken = dict.fromkeys(found.column_names, rows.path)
    at_us = _times(rows, rules.time)
    for source in features:
        index = _newest(rows, at_us, source, rules)
        matched.append(len(index) - index.null_count)
        for name in source.table.column_names:
            if name in (*rules.keys, rules.time):
                continue
            if name in taken:
                raise DataError(
                    f"{source.path}: column {name} is also in {taken[name]}; rename one of them"
                )
            taken[name] = source.path
            found = found.append_column(name, source.table.column(name).take(index))
    return Joined(found, tuple(matched))


def _newest(rows: Source, at_us: Numbers, source: Source, rules: Rules) -> Any:
    """For each row the index of its row in `source`; null: there is none."""
    known_us = _times(source, rules.time)
    counts_us = known_us + round(rules.delay_s * _US)
    codes = _codes(rows, source, rules.keys)
    own = len(known_us)
    # Both tables in one order by key, then time; of equal times features come first.
    of_rows = np.concatenate([np.zeros(own, np.int8), np.ones(len(at_us), np.int8)])
    order = np.lexsort((of_rows, np.concatenate([counts_us, at_us]), codes))
    is_feature = order < own
    last = np.maximum.accumulate(np.where(is_feature, np.arange(len(order)), -1))
    asked, place = order[~is_feature] - own, last[~is_feature]
    index = order[np.maximum(place, 0)] if len(order) else order
    there = (place >= 0) & (codes[index] == codes[order[~is_feature]])
    index = np.where(there, index, 0)
    if rules.max_age_s is not None and own:
        there &= at_us[asked] - known_us[index] <= round(rules.max_age_s * _US)
    newest, missing = np.empty(len(at_us), np.int64), np.empty(len(at_us), bool)
    newest[asked], missing[asked] = index, ~there
    return pa.array(newest, mask=missing)


def _codes(rows: Source, source: Source, keys: Sequence[str]) -> Numbers:
    """A number for each combination of keys: those of `source`, then those of `rows`."""
    codes = np.zeros(source.table.num_rows + rows.table.num_rows, np.int64)
    for key in keys:
        theirs, ours = source.column(key), rows.column(key)
        if theirs.type != ours.type:
            raise DataError(
                f"{source.path}: column {key} is {theirs.type}, and {ours.type} in {rows.path}"
            )
        both = pa.concat_arrays([theirs, ours]).dictionary_encode()
        numbers = np.asarray(both.indices, np.int64)
        _, codes = np.unique(codes * (len(both.dictionary) + 1) + numbers, return_inverse=True)
    return codes


def _times(source: Source, name: str) -> Numbers:
    """Times in microseconds since 1970; without a zone they are UTC. Raises DataError."""
    column = source.column(name)
    if not (pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)):
        raise DataError(
            f"{source.path}: column {name} is {column.type}; give dates, or times such as "
            "2026-11-21T08:00:00Z"
        )
    try:
        return np.asarray(pc.cast(column, pa.timestamp("us")).cast(pa.int64()), np.int64)
    except pa.ArrowInvalid as error:  # nanoseconds that are no whole microseconds
        raise DataError(f"{source.path}: column {name}: {error}") from None


def write_table(path: Path, table: Any) -> None:
    """A Parquet file that is there whole, or not at all. Raises DataError or OSError."""
    if path.exists():
        raise DataError(f"{path}: is there already; remove it, or name another file")
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    replace_file(path, [sink.getvalue().to_pybytes()])
