"""`gangline export, import`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.sdk.answers import path_id
from gangline.sdk.mlflow import Mlflow
from gangline.session import Session

if TYPE_CHECKING:
    from gangline.exchange.export import ExportedRun
    from gangline.exchange.importer import Imported, ImportedRun

Team = Annotated[
    str | None, typer.Option(help="The team of the MLflow runs, if not the token's own or default.")
]
_EVERY_S = 2.0
_IDS_AT_ONCE = 50


def export(
    session: Session,
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="RUN", help="Runs of jobs, or of MLflow.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="FILTER", help="All runs that match; '' is all. As in gangline runs."),
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Choose among MLflow's runs, not those of jobs.")
    ] = False,
    experiment: Annotated[
        list[str] | None,
        typer.Option(help="With --mlflow: only the one of this whole name; may be repeated."),
    ] = None,
    team: Team = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="A directory that does not exist yet.")
    ] = Path("gangline-export"),
) -> None:
    """Write runs with all their points, parameters and tags as Parquet files."""
    from gangline.exchange.export import Exporter

    given = bool(run_ids) + (where is not None or mlflow)
    if given != 1 or (experiment and not mlflow):
        raise CliError(
            "give runs, or --where, or --mlflow", "all runs of jobs: --where ''", ExitCode.USAGE
        )
    if mlflow:
        runs = _mlflow_runs(session, team, where or "", experiment or ())
    elif where is not None:
        runs = _job_runs(session, where, team)
    else:
        runs = iter(named_runs(session, list(dict.fromkeys(run_ids or ())), team))
    progress = _Progress(session)
    exporter = Exporter(
        session.client,
        out,
        lambda counts: progress.say(f"{counts.runs} runs, {counts.points:,} points"),
    )
    found = exporter.write(runs)
    session.out.show(
        {"out": str(out), **asdict(found)},
        f"{out}: {render.count(found.runs, 'run')}, {found.points:,} points, "
        f"{found.params:,} parameters, {found.tags:,} tags",
    )


def import_runs(
    session: Session,
    path: Annotated[Path, typer.Argument(help="A directory or a file with runs.")],
    project: Annotated[
        str | None, typer.Option(metavar="P", help="The experiment; default: the source's.")
    ] = None,
    team: Team = None,
) -> None:
    """Take in runs of MLflow, W&B, TensorBoard or an export, as MLflow runs.

    A second import of the same changes nothing. It takes

    - MLflow: mlruns/, an experiment or a run in it, a database such as mlflow.db
    - W&B: wandb/, histories of its API (history.jsonl, .json, .csv, .parquet)
    - TensorBoard: directories with *tfevents* files
    - what `gangline export` wrote
    """
    from gangline.exchange.importer import Importer
    from gangline.exchange.sources import source_of

    source = source_of(path, session.out.note)
    session.out.note(f"{path}: {source.kind}")
    progress = _Progress(session)
    importer = Importer(session.client.mlflow(team), project, progress.say)
    done = importer.run(source)
    columns: list[Column[ImportedRun]] = [
        Column("RUN", lambda run: run.run_id or NONE, whole=True),
        Column("NAME", lambda run: run.name, flexible=True),
        Column("PROJECT", lambda run: run.project, flexible=True),
        Column("POINTS", lambda run: f"{run.points:,}", right=True),
        Column("OUTCOME", lambda run: run.outcome),
    ]
    result = asdict(done) | {"left": dict(done.left)}
    session.out.listing(done.runs, columns, f"{path} has no runs", result)
    _tell(session, done)
    if done.troubles:
        raise SystemExit(int(ExitCode.TOOL_ERROR))


def _tell(session: Session, done: Imported) -> None:
    left = ", ".join(f"{count:,} {what}" for what, count in sorted(done.left.items()) if count)
    if left:
        session.out.note(f"left out: {left}")
    for name, given in done.renamed.items():
        session.out.note(f"renamed: {name} is {given}")
    for trouble in done.troubles:
        session.out.note(f"error: {trouble}")
    if done.runs and all(run.outcome == "unchanged" for run in done.runs):
        session.out.note("all of it was imported before; nothing has changed")


def _job_runs(session: Session, where: str, team: str | None) -> Iterator[ExportedRun]:
    from gangline.exchange.export import of_job

    return map(of_job, session.client.runs(where=where, team=team, kind="job"))


def _mlflow_runs(
    session: Session, team: str | None, where: str, experiments: Sequence[str]
) -> Iterator[ExportedRun]:
    from gangline.exchange.export import of_mlflow, settled

    mlflow = session.client.mlflow(team)
    known = mlflow.experiments()
    if unknown := set(experiments) - set(known.values()):
        raise CliError(
            f"{mlflow.team} has no experiment {', '.join(sorted(unknown))}",
            f"it has {', '.join(sorted(known.values())) or 'none'}",
            ExitCode.NOT_FOUND,
        )
    chosen = [key for key, name in known.items() if not experiments or name in experiments]
    found = settled(mlflow.search(chosen, where), mlflow, datetime.now(UTC))
    return (of_mlflow(run, mlflow.team) for run in found)


def named_runs(session: Session, run_ids: Sequence[str], team: str | None) -> list[ExportedRun]:
    """Runs of jobs and of MLflow by their ids, in this order. Raises CliError."""
    from gangline.exchange.export import of_job, of_mlflow, settled

    found: dict[str, ExportedRun] = {}
    for first in range(0, len(run_ids), _IDS_AT_ONCE):
        some = ", ".join(f"'{path_id(run)}'" for run in run_ids[first : first + _IDS_AT_ONCE])
        for run in session.client.runs(where=f"run_id IN ({some})", kind="job"):
            found[run.run_id] = of_job(run)
    others = [run_id for run_id in run_ids if run_id not in found]
    if others:
        mlflow = _mlflow_if_known(session, team, others[0])
        for run_id in others:
            logged = mlflow.run(run_id)
            if logged is None:
                raise CliError(f"no run {run_id}", "see: gangline runs", ExitCode.NOT_FOUND)
            (ready,) = settled([logged], mlflow, datetime.now(UTC))
            found[run_id] = of_mlflow(ready, mlflow.team)
    return [found[run_id] for run_id in run_ids]


def _mlflow_if_known(session: Session, team: str | None, run_id: str) -> Mlflow:
    try:
        return session.client.mlflow(team)
    except CliError as error:
        raise CliError(
            f"no job has the run {run_id}", f"MLflow: {error.message}; {error.hint}", error.code
        ) from None


class _Progress:
    """A line about how far it is, at most every two seconds; on a terminal always the same one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next_s = time.monotonic() + _EVERY_S

    def say(self, text: str) -> None:
        """Say it, if the last time is long enough ago."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + _EVERY_S
        line = render.shorten(render.plain(text), render.WIDTH)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{line:{render.WIDTH}}\r")
            sys.stderr.flush()
        else:
            self._session.out.note(line)
