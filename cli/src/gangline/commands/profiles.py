"""`gangline data profile`: the profile of a snapshot or a table, sent for the watch on drift."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangline.commands.rows_file import read_rows
from gangline.errors import CliError, ExitCode
from gangline.session import Session

if TYPE_CHECKING:
    from gangline_schemas.profile import Profile

_MANIFEST = "manifest.json"
_MOST_TOKENS = 100_000_000
"""Token shares are counted in the first shards, up to so many tokens."""


def profile(
    session: Session,
    place: Annotated[
        Path, typer.Argument(metavar="PLACE", help="A token snapshot's folder, .csv or .jsonl.")
    ],
    *,
    team: Annotated[str, typer.Option(help="The team whose data it is.")],
    snapshot: Annotated[
        str | None,
        typer.Option(help="The snapshot's name; default: the manifest's, or of the file's bytes."),
    ] = None,
    serving: Annotated[
        bool, typer.Option("--serving", help="The data were seen by a system that serves.")
    ] = False,
) -> None:
    """Profile data and send the profile: quantiles, categories, lengths, token shares."""
    from gangline_registry.core.profiling import profile_of

    if (place / _MANIFEST).is_file():
        name, made = _tokens(place)
    elif place.suffix in {".csv", ".jsonl"} and place.is_file():
        columns, rows = _table(place)
        made = profile_of(columns, rows)
        name = f"{_plain(place.stem)}@sha256-{hashlib.sha256(place.read_bytes()).hexdigest()}"
    else:
        raise CliError(f"{place}: is no token snapshot, .csv or .jsonl file", code=ExitCode.USAGE)
    made_at = datetime.fromtimestamp(place.stat().st_mtime, UTC)
    sent = session.client.send_profile(
        team, snapshot or name, made.model_dump(mode="json"), made_at, serving=serving
    )
    text = f"{sent.snapshot}: {sent.rows:,} rows, {sent.columns} columns"
    session.out.show(sent, text)


def _tokens(folder: Path) -> tuple[str, Profile]:
    """The name and profile of a token snapshot: lengths of documents, shares of tokens."""
    import numpy as np

    from gangline_registry.core.profiling import category_of, sketch_of
    from gangline_schemas.profile import NumberColumn, Profile

    manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    if "tokenizer" not in manifest:
        raise CliError(f"{folder}: only token snapshots have a profile", code=ExitCode.USAGE)
    kind = np.dtype("<u2") if manifest["tokenizer"]["vocab_size"] <= 1 << 16 else np.dtype("<u4")
    starts, counts, at, seen = [], np.zeros(1, dtype=np.int64), 0, 0
    for shard in manifest["shards"]:
        offsets = np.fromfile(folder / shard["documents"]["name"], dtype="<u8")
        starts.append(offsets.astype(np.int64) + at)
        at += shard["tokens"]
        if seen < _MOST_TOKENS:
            tokens = np.memmap(folder / shard["name"], dtype=kind, mode="r")[:_MOST_TOKENS]
            counted = np.bincount(tokens)
            counts = np.pad(counts, (0, max(0, len(counted) - len(counts))))
            counts[: len(counted)] += counted
            seen += len(tokens)
    lengths = np.diff(np.append(np.concatenate(starts), at)).astype(float)
    shares = {str(token): int(counts[token]) for token in np.flatnonzero(counts)}
    columns = (
        NumberColumn(name="document_tokens", sketch=sketch_of(lengths)),
        category_of("token", shares),
    )
    return manifest["name"], Profile(rows=len(lengths), columns=columns)


def _table(path: Path) -> tuple[dict[str, Sequence[Any]], int]:
    """Columns by name: numbers where all values are numbers, else texts; None where missing."""
    from gangline_registry.core.profiling import is_number

    rows: list[dict[str, Any]] = []
    for number, row in read_rows(path):
        if not isinstance(row, dict):
            raise CliError(f"{path}:{number}: is not an object", code=ExitCode.USAGE)
        rows.append(row)
    if not rows:
        raise CliError(f"{path}: has no rows", code=ExitCode.USAGE)
    columns: dict[str, Sequence[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row if name):
        values = [row.get(name) for row in rows]
        if path.suffix == ".csv":
            values = [one or None for one in values]
        texts = [one for one in values if one is not None]
        if path.suffix == ".csv" and all(map(is_number, texts)):
            values = [None if one is None else float(one) for one in values]
        columns[name] = values
    return columns, len(rows)


def _plain(stem: str) -> str:
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in stem.lower())
    return kept.strip("-")[:63] or "table"
