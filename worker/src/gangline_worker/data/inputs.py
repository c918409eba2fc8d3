"""Inputs of `prepare`: text files, JSON lines and Parquet, as one stream of documents.

Each document has a place in its file to which reading can come back, so that a preparation that
was killed continues where it was.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gangline_schemas.base import Model
from gangline_worker.data.errors import DataError

Place = tuple[int, int]
"""Text: (0, 0). JSON lines: byte offset and number of the line. Parquet: row group, row in it."""

START: Place = (0, 0)
MAX_DOCUMENT_BYTES = 256 << 20
_PACKED = frozenset({".gz", ".zst", ".bz2", ".xz", ".zip", ".tar", ".7z"})
_LINES = frozenset({".jsonl", ".ndjson"})
_ROWS_AT_ONCE = 1024


class Input(Model):
    """One file, as it was when the preparation began."""

    path: str
    kind: Literal["text", "jsonl", "parquet"]
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Document:
    """UTF-8 text (of a text file or Parquet: any bytes); `where` is `file` or `file:line`."""

    data: bytes
    place: Place
    where: str


def find_inputs(sources: Sequence[Path], *, out: Path) -> tuple[Input, ...]:
    """All files of the sources; a folder's by path, without hidden ones and links.

    Raises:
        DataError: a source is missing, empty or packed, holds `out`, or is named twice.
    """
    found: list[Path] = []
    for source in sources:
        if not source.exists():
            raise DataError(f"{source}: no such file or folder")
        if source.is_dir():
            if out.resolve().is_relative_to(source.resolve()):
                raise DataError(f"{source}: holds the output {out}; write it elsewhere")
            below = _below(source)
            if not below:
                raise DataError(f"{source}: has no files")
            found.extend(below)
        elif source.is_file():
            found.append(source)
        else:
            raise DataError(f"{source}: is neither a file nor a folder")
    paths = [path.resolve() for path in found]
    for path in paths:
        if path.suffix.lower() in _PACKED:
            raise DataError(f"{path}: is packed ({path.suffix}); unpack it, or leave it out")
    path, times = Counter(paths).most_common(1)[0]
    if times > 1:
        raise DataError(f"{path}: is named more than once")
    return tuple(_describe(path) for path in paths)


def _below(folder: Path) -> list[Path]:
    files: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(root, name) for name in names if not name.startswith("."))
        files.extend(path for path in paths if path.is_file() and not path.is_symlink())
    return sorted(files, key=lambda path: path.parts)


def _describe(path: Path) -> Input:
    stat = path.stat()
    suffix = path.suffix.lower()
    kind: Literal["text", "jsonl", "parquet"] = "text"
    if suffix in _LINES:
        kind = "jsonl"
    elif suffix == ".parquet":
        kind = "parquet"
    return Input(path=str(path), kind=kind, size_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)


def read_documents(source: Input, start: Place, field: str) -> Iterator[Document]:
    """The documents of a file from a place on; `field` holds the text of a line or row.

    Raises:
        DataError: the file has changed since it was described, or a document of it is wrong; the
            message names file and line.
        OSError: the file cannot be read.
    """
    path = Path(source.path)
    if not path.exists() or _describe(path) != source:
        raise DataError(
            f"{path}: has changed since this preparation began; restore the file, or start again "
            "in another folder"
        )
    if source.kind == "jsonl":
        yield from _lines(path, start, field)
    elif source.kind == "parquet":
        yield from _rows(path, start, field)
    elif source.size_bytes > MAX_DOCUMENT_BYTES:
        raise DataError(
            f"{path}: a text file is one document, and {source.size_bytes:,} bytes are more than "
            f"{MAX_DOCUMENT_BYTES:,}; split it, or give JSON lines with a document each"
        )
    else:
        yield Document(path.read_bytes(), START, str(path))


def _lines(path: Path, start: Place, field: str) -> Iterator[Document]:
    offset, number = start
    with path.open("rb") as file:
        file.seek(offset)
        while line := file.readline(MAX_DOCUMENT_BYTES + 1):
            where = f"{path}:{number + 1}"
            if len(line) > MAX_DOCUMENT_BYTES:
                raise DataError(f"{where}: is longer than {MAX_DOCUMENT_BYTES:,} bytes")
            if line.strip():
                yield Document(_text_of(line, field, where), (offset, number), where)
            offset += len(line)
            number += 1


def _text_of(line: bytes, field: str, where: str) -> bytes:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: must be an object with the field {field!r}")
    if field not in row:
        named = ", ".join(sorted(row)[:8]) or "none"
        raise DataError(f"{where}: has no field {field!r} (fields: {named}); name one by --field")
    return _encoded(row[field], field, where)


def _encoded(value: object, field: str, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} must be text, not {type(value).__name__}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: {field!r} is not Unicode text: {error.reason}") from None


def _rows(path: Path, start: Place, field: str) -> Iterator[Document]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            _check_column(file.schema_arrow, field, path)
            first_group, first_row = start
            for group in range(first_group, file.num_row_groups):
                skip = first_row if group == first_group else 0
                for row, value in enumerate(_values(file, group, field)):
                    if row >= skip:
                        where = f"{path}: row {row + 1} of row group {group}"
                        yield Document(_encoded(value, field, where), (group, row), where)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's; a damaged page is an OSError without a number
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from None


def _check_column(schema: Any, field: str, path: Path) -> None:
    import pyarrow as pa

    if field not in schema.names:
        raise DataError(
            f"{path}: has no column {field!r} (columns: {', '.join(schema.names[:8])}); name one "
            "by --field"
        )
    kind = schema.field(field).type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    if not any(is_text(kind) for is_text in (*texts, pa.types.is_large_binary)):
        raise DataError(f"{path}: the column {field!r} must be text, not {kind}")


def _values(file: Any, group: int, field: str) -> Iterator[object]:
    """As bytes, UTF-8 or not: a tokenizer that needs text names the row that is none."""
    import pyarrow as pa

    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=[field]):
        yield from batch.column(0).cast(pa.large_binary()).to_pylist()
