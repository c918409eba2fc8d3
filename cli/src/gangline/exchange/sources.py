"""Which format a path has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gangline.errors import CliError, ExitCode
from gangline.exchange import event_files, export, mlflow_database, wandb_log
from gangline.exchange.event_files import EventFiles
from gangline.exchange.mlflow_database import MlflowDatabase
from gangline.exchange.mlflow_files import MlflowFiles, is_store
from gangline.exchange.own_export import OwnExport
from gangline.exchange.records import Source
from gangline.exchange.wandb_log import WandbLogs
from gangline.exchange.wandb_tables import WandbTables, histories


def source_of(path: Path) -> Source:
    """The reader of a path. Raises CliError if it has no known format."""
    if not path.exists():
        raise CliError(f"{path} does not exist", code=ExitCode.USAGE)
    if path.is_file() and path.parent.joinpath(export.RUNS).is_file():
        raise CliError(f"{path} is a part of an export", f"give {path.parent}", ExitCode.USAGE)
    for holds, reader in _READERS:
        try:
            if holds(path):
                return reader(path)
        except OSError as error:
            raise CliError(f"{path}: {error.strerror}") from None
    for inner in ("mlruns", "wandb"):
        if (path / inner).is_dir():
            return source_of(path / inner)
    raise CliError(f"{path} holds no runs", "its formats: gangline import --help", ExitCode.USAGE)


def _is_export(path: Path) -> bool:
    return (path / export.RUNS).is_file()


def _is_database(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(mlflow_database.MAGIC)) == mlflow_database.MAGIC


def _matches(path: Path, pattern: str) -> bool:
    return any(path.rglob(pattern)) if path.is_dir() else path.match(pattern)


_READERS: tuple[tuple[Callable[[Path], bool], Callable[[Path], Source]], ...] = (
    (_is_export, OwnExport),
    (_is_database, MlflowDatabase),
    (is_store, MlflowFiles),
    (lambda path: _matches(path, wandb_log.PATTERN), WandbLogs),
    (lambda path: _matches(path, event_files.PATTERN), EventFiles),
    (lambda path: bool(histories(path)), WandbTables),
)
