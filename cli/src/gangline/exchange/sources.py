"""Which format a path has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gangline.errors import CliError, ExitCode
from gangline.exchange import event_files, export, mlflow_database, wandb_log
from gangline.exchange.event_files import EventFiles
from gangline.exchange.mlflow_database import MlflowDatabase
from gangline.exchange.mlflow_files import MlflowFiles, is_store
from gangline.exchange.own_export import OwnExport
from gangline.exchange.records import Source
from gangline.exchange.wandb_log import WandbLogs
from gangline.exchange.wandb_tables import WandbTables, histories


class _Reader(Protocol):
    kind: str

    def __call__(self, path: Path, /) -> Source: ...


def source_of(path: Path, notice: Callable[[str], None] = lambda _: None) -> Source:
    """The reader of a path. Raises CliError if it has no known format.

    A path that has several is read as the first of them; `notice` gets a line about the others.
    """
    if not path.exists():
        raise CliError(f"{path} does not exist", code=ExitCode.USAGE)
    if path.is_file() and path.parent.joinpath(export.RUNS).is_file():
        raise CliError(f"{path} is a part of an export", f"give {path.parent}", ExitCode.USAGE)
    try:
        found = [(place, reader) for find, reader in _READERS if (place := find(path)) is not None]
        if not found:
            hint = "its formats: gangline import --help"
            raise CliError(f"{path} holds no runs", hint, ExitCode.USAGE)
        (place, reader), *others = found
        for _, other in others:
            notice(
                f"{path} also holds: {other.kind}, which is not read; give its own path for that"
            )
        return reader(place)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None


def _export(path: Path) -> Path | None:
    return path if (path / export.RUNS).is_file() else None


def _database(path: Path) -> Path | None:
    """The file itself, or the one that MLflow makes in a directory."""
    place = path / "mlflow.db" if path.is_dir() else path
    if not place.is_file():
        return None
    with place.open("rb") as file:
        is_one = file.read(len(mlflow_database.MAGIC)) == mlflow_database.MAGIC
    return place if is_one else None


def _store(path: Path) -> Path | None:
    return next((place for place in (path, path / "mlruns") if is_store(place)), None)


def _matching(pattern: str) -> Callable[[Path], Path | None]:
    def find(path: Path) -> Path | None:
        has = any(path.rglob(pattern)) if path.is_dir() else path.match(pattern)
        return path if has else None

    return find


_READERS: tuple[tuple[Callable[[Path], Path | None], _Reader], ...] = (
    (_export, OwnExport),
    (_database, MlflowDatabase),
    (_store, MlflowFiles),
    (_matching(wandb_log.PATTERN), WandbLogs),
    (_matching(event_files.PATTERN), EventFiles),
    (lambda path: path if histories(path) else None, WandbTables),
)
