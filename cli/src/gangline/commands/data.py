"""`gangline data`: snapshots are made, read back and shown by the worker's own program.

This process becomes that program, so signals, output and exit codes are the program's own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from gangline.errors import CliError
from gangline.session import Json, target_of

_PACKAGE = "gangline_worker"

Snapshot = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="A folder, or a URL: s3://bucket/corpus.")
]


def prepare(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT...", help="Text, .jsonl, .parquet, or folders.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The snapshot's folder.")],
    name: Annotated[
        str | None,
        typer.Option("--name", help="The name before the digest; default: the folder's."),
    ] = None,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="bytes, tokenizers:FILE or transformers:NAME.")
    ] = "bytes",
    field: Annotated[
        str, typer.Option("--field", help="The field with the text, in JSON lines and Parquet.")
    ] = "text",
    shard_mb: Annotated[
        int, typer.Option("--shard-mb", help="Size of a shard in MiB, 1 to 16384.")
    ] = 128,
    end_of_document: Annotated[
        int | None, typer.Option("--end-of-document", help="Token that ends a document.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a token snapshot of text. After a stop or a kill, the same command continues."""
    options = ["--out", str(out), "--tokenizer", tokenizer, "--field", field]
    options += ["--shard-mb", str(shard_mb)]
    if name is not None:
        options += ["--name", name]
    if end_of_document is not None:
        options += ["--end-of-document", str(end_of_document)]
    _become(context, "prepare", options, [str(path) for path in inputs], json=json)


def index(
    context: typer.Context,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A folder with *.tar files, or a URL.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="The name before the digest; default: the folder's."),
    ] = None,
    json: Json = False,
) -> None:
    """Index tar files in place as a snapshot: each is read once, none is changed."""
    options = [] if name is None else ["--name", name]
    _become(context, "index", options, [place], json=json)


def verify(context: typer.Context, snapshot: Snapshot, json: Json = False) -> None:
    """Read a whole snapshot back and compare every block with its checksum."""
    _become(context, "verify", [], [snapshot], json=json)


def show(context: typer.Context, snapshot: Snapshot, json: Json = False) -> None:
    """Show a snapshot's contents from its manifest."""
    _become(context, "show", [], [snapshot], json=json)


def _become(
    context: typer.Context, command: str, options: list[str], names: list[str], *, json: bool
) -> NoReturn:
    if importlib.util.find_spec(_PACKAGE) is None:
        raise CliError(
            "token snapshots are made by the package gangline-worker", "install it here first"
        )
    if target_of(context, json=json).json:
        options = [*options, "--json"]
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = [sys.executable, "-m", f"{_PACKAGE}.data", command, *options, "--", *names]
    os.execv(sys.executable, arguments)  # noqa: S606 -- this is the point
