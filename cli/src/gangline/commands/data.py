"""`gangline data`: snapshots are made, read back and shown by the worker's own program.

This process becomes that program, so signals, output and exit codes are the program's own.
"""

from __future__ import annotations

import importlib.util
import json as jsons
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gangline.errors import CliError, ExitCode
from gangline.session import Json, target_of

_PACKAGE = "gangline_worker"

Snapshot = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="A folder, or a URL: s3://bucket/corpus.")
]

NoProfile = Annotated[
    bool, typer.Option("--no-profile", help="Leave out the profile: data are not read again.")
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
    no_profile: NoProfile = False,
    json: Json = False,
) -> None:
    """Make a token snapshot of text. After a stop or a kill, the same command continues."""
    options = ["--out", str(out), "--tokenizer", tokenizer, "--field", field]
    options += ["--shard-mb", str(shard_mb)]
    if name is not None:
        options += ["--name", name]
    if end_of_document is not None:
        options += ["--end-of-document", str(end_of_document)]
    if no_profile:
        options.append("--no-profile")
    _become(context, "prepare", options, [str(path) for path in inputs], json=json)


def join(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    rows: Annotated[
        Path, typer.Argument(metavar="ROWS", help="Rows with keys and times: Parquet, CSV, JSON.")
    ],
    features: Annotated[
        list[Path], typer.Option("--features", help="A table of features; may be repeated.")
    ],
    key: Annotated[
        list[str], typer.Option("--key", help="A column that all tables have; may be repeated.")
    ],
    time: Annotated[str, typer.Option("--time", help="The column with the times, in each table.")],
    out: Annotated[Path, typer.Option("--out", help="The Parquet file to write.")],
    delay_s: Annotated[
        float,
        typer.Option("--delay-s", help="Features are known so many seconds after their time."),
    ] = 0.0,
    max_age_s: Annotated[
        float | None, typer.Option("--max-age-s", help="Older features do not count.")
    ] = None,
    json: Json = False,
) -> None:
    """Give each row the newest features that were known at its time, and no later ones."""
    options = [f"--features={path}" for path in features] + [f"--key={name}" for name in key]
    options += [f"--time={time}", f"--out={out}", f"--delay-s={delay_s}"]
    if max_age_s is not None:
        options.append(f"--max-age-s={max_age_s}")
    _become(context, "join", options, [str(rows)], json=json)


def index(
    context: typer.Context,
    place: Annotated[
        str, typer.Argument(metavar="PLACE", help="A folder with *.tar files, or a URL.")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", help="The name before the digest; default: the folder's."),
    ] = None,
    no_profile: NoProfile = False,
    json: Json = False,
) -> None:
    """Index tar files in place as a snapshot: each is read once, none is changed."""
    options = [] if name is None else ["--name", name]
    if no_profile:
        options.append("--no-profile")
    _become(context, "index", options, [place], json=json)


def verify(context: typer.Context, snapshot: Snapshot, json: Json = False) -> None:
    """Read a whole snapshot back and compare every block with its checksum."""
    _become(context, "verify", [], [snapshot], json=json)


def show(context: typer.Context, snapshot: Snapshot, json: Json = False) -> None:
    """Show a snapshot's contents from its manifest."""
    _become(context, "show", [], [snapshot], json=json)


@dataclass(frozen=True)
class PlacedProfile:
    """The profile of a snapshot; `made_at` None: it is not known when the snapshot was made."""

    snapshot: str
    made_at: datetime | None
    profile: dict[str, Any]
    sources: tuple[str, ...] = ()


def profile_at(place: str, *, kept: bool = False) -> PlacedProfile:
    """The profile that lies with a snapshot; without `kept` else one that is made now.

    Raises CliError: the program has said why on stderr.
    """
    command = _program("profile", ["--kept"] if kept else [], [place])
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise CliError(f"{place}: there is no profile", code=ExitCode.USAGE)
    found = jsons.loads(done.stdout)
    made_at = found.get("made_at")
    when = None if made_at is None else datetime.fromisoformat(made_at)
    sources = tuple(found.get("sources", ()))
    return PlacedProfile(found["snapshot"], when, found["profile"], sources)


def _become(
    context: typer.Context, command: str, options: list[str], names: list[str], *, json: bool
) -> NoReturn:
    if target_of(context, json=json).json:
        options = [*options, "--json"]
    arguments = _program(command, options, names)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, arguments)  # noqa: S606 -- this is the point


def _program(command: str, options: list[str], names: list[str]) -> list[str]:
    """Its command line. Raises CliError."""
    if importlib.util.find_spec(_PACKAGE) is None:
        raise CliError(
            "token snapshots are made by the package gangline-worker", "install it here first"
        )
    return [sys.executable, "-m", f"{_PACKAGE}.data", command, *options, "--", *names]
