"""`gangline study`: submit a study, look at its trials, stop it."""

from __future__ import annotations

import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gangline import render
from gangline.commands import study_text
from gangline.commands.list_options import Limit
from gangline.commands.submit import as_unfinished
from gangline.errors import CliError, ExitCode
from gangline.output import Output
from gangline.session import Json, Session, target_of
from gangline.study_file import StudyFile, read_study_file
from gangline_schemas.api.studies import ENOUGH_TRIALS, Study, StudyDetail

StudyId = Annotated[
    str, typer.Argument(metavar="STUDY", help="The study's id, as `study list` shows it.")
]


def submit(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The study file (YAML).")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; start nothing.")] = (
        False
    ),
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the study's end.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds that --wait waits at most.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key gives the same study.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    team: Annotated[str | None, typer.Option("--team", help="Replace the file's team.")] = None,
) -> None:
    """Submit a study file; first shows the trials and the job that it would run.

    Exit codes with --wait: 0 it has a best trial, 100 it has none, 101 not finished, 103 stopped.
    """
    study = read_study_file(file, {} if team is None else {"team": team})
    out = session.out
    plan = session.client.plan_study(study)
    text = study_text.plan(plan, _packed(study))
    if dry_run:
        out.show(plan, text)
        if plan.rejected:
            raise typer.Exit(int(ExitCode.USAGE))
        return
    out.note(text)
    if plan.rejected:
        raise CliError("quota would reject each of its jobs", "see the notes above", ExitCode.USAGE)
    if not yes and not out.json and sys.stdin.isatty():
        typer.confirm("submit it?", default=True, abort=True, err=True)
    found = session.client.submit_study(study, idempotency_key or uuid.uuid4().hex)
    if wait:
        _wait(session, found, timeout)
        return
    out.show(found, found.study_id)
    out.note(f"look at it: gangline study show {found.study_id}")


def _packed(study: StudyFile) -> str:
    if study.bundle is None:
        return ""
    files = render.count(study.bundle.files, "file")
    return f"{files}, {render.size(len(study.bundle.data))} packed"


def _wait(session: Session, begun: StudyDetail, timeout_s: float | None) -> None:
    out, study_id = session.out, begun.study_id
    out.note(f"{study_id} submitted; waiting for its end")
    try:
        ended = session.client.wait_for_study(
            study_id, timeout_s, on_change=lambda study: _note(study, out)
        )
    except (CliError, KeyboardInterrupt) as error:
        out.show(session.client.study(study_id) if out.json else begun, study_id)
        raise as_unfinished(error, study_id) from None
    out.show(ended, study_id)
    out.note(study_text.ending(ended))
    raise typer.Exit(int(exit_code(ended)))


def _note(study: Study, out: Output) -> None:
    if not study.ended:
        out.note(render.wrap(study_text.progress(study)))


def exit_code(study: Study) -> ExitCode:
    """The exit code that stands for how a study ended."""
    if not study.ended:
        return ExitCode.NOT_FINISHED
    if study.reason == "stopped":
        return ExitCode.CANCELLED
    front = len(study.objectives) > 1 and study.trials.completed > 0
    return ExitCode.DONE if study.best is not None or front else ExitCode.JOB_FAILED


def list_studies(
    session: Session,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="running, ending or ended; repeatable.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Only this team.")] = None,
    name: Annotated[str | None, typer.Option(help="Only names that start with this.")] = None,
    limit: Limit = 50,
) -> None:
    """Studies, the newest first."""
    found = session.client.studies(states=state or (), team=team, name=name, limit=limit)
    columns = study_text.studies(datetime.now(UTC))
    session.out.listing([*found], columns, "no studies; see: gangline study submit --help")


def show(session: Session, study_id: StudyId) -> None:
    """A study: its trials by state, its best trial, its use of GPUs."""
    found = session.client.study(study_id)
    session.out.show(found, study_text.description(found, datetime.now(UTC)))


def trials(
    session: Session,
    study_id: StudyId,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only this state; may be repeated.")
    ] = None,
    order_by: Annotated[str, typer.Option(help="number, newest, value or gpu_hours.")] = "number",
    limit: Limit = 50,
) -> None:
    """The trials of a study with their parameters."""
    found = [*session.client.trials(study_id, states=state or (), order_by=order_by, limit=limit)]
    session.out.listing(found, study_text.trials(found), "no trials yet")


def best(session: Session, study_id: StudyId) -> None:
    """The best trial, or the Pareto front; and how the best value improved."""
    study = session.client.study(study_id)
    if len(study.objectives) > 1:
        front = session.client.pareto_front(study_id)
        columns = study_text.front(front)
        session.out.listing(front.trials, columns, "no completed trials yet", front)
        return
    if study.best is None:
        raise CliError(f"{study_id} has no completed trial yet", code=ExitCode.NOT_FINISHED)
    session.out.show(study.best, study_text.best(study, session.client.best_so_far(study_id)))


def importance(
    session: Session,
    study_id: StudyId,
    metric: Annotated[
        str | None, typer.Option(help="For this objective; by default the first.")
    ] = None,
) -> None:
    """How much each parameter matters for the objective."""
    found = session.client.study_importance(study_id, metric=metric)
    session.out.listing(
        found.parameters, study_text.importances(), "the space has no parameters", found
    )
    if found.trials < ENOUGH_TRIALS:
        session.out.note(f"from {render.count(found.trials, 'completed trial')}: it says little")


def curves(
    session: Session,
    study_id: StudyId,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="Trials.")] = 20,
) -> None:
    """The objective of each trial over its steps: live trials, then the best."""
    found = session.client.study_curves(study_id, limit=limit)
    session.out.listing(found.curves, study_text.curves(found), "no trial has reported yet", found)
    if found.curves and found.rungs:
        session.out.note(f"trials are compared at steps {', '.join(map(str, found.rungs))}")
    if found.left_out:
        session.out.note(f"{render.count(found.left_out, 'further trial')}; see --limit")


def parallel(
    session: Session,
    study_id: StudyId,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=1000, help="Trials; a line has 40.")
    ] = 40,
) -> None:
    """Where the best trials lie on each axis: a character a trial, the best one first."""
    found = session.client.study_parallel(study_id, limit=limit)
    rows = [*enumerate(found.axes)] if found.runs else []
    session.out.listing(rows, study_text.parallel(found), "no completed trial yet", found)


def stop(session: Session, study_id: StudyId) -> None:
    """End a study: no trial starts any more, and those that run are cancelled."""
    found = session.client.stop_study(study_id)
    text = f"{study_id} has ended" if found.ended else f"{study_id} ends: its jobs are cancelled"
    session.out.show(found, text)


def export(
    session: Session,
    study_id: StudyId,
    journal: Annotated[
        Path, typer.Option("--journal", metavar="FILE", help="A file that does not exist yet.")
    ],
) -> None:
    """Write a study as a journal of Optuna, which optuna-dashboard opens."""
    from gangline.exchange.study_journal import write_journal

    client = session.client
    study = client.study(study_id)
    found = [*client.trials(study_id)]
    curves = client.study_curves(study_id, limit=1000)
    write_journal(journal, study, found, curves)
    if curves.left_out:
        left_out = render.count(curves.left_out, "further trial")
        session.out.note(f"without the curves of {left_out}; their values are there")
    text = f"{journal}: {render.count(len(found), 'trial')}; open it: optuna-dashboard {journal}"
    session.out.show({"journal": str(journal), "trials": len(found)}, text)


def import_study(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="An experiment of Katib or Determined, or W&B sweep."),
    ],
    team: Annotated[str, typer.Option(help="The study's team.")] = "default",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Default: stdout.")
    ] = None,
    json: Json = False,
) -> None:
    """Translate a search of another tool into a study file; notes say what is left out."""
    from gangline.exchange.study_import import translate

    printed = Output(json=target_of(context, json=json).json)
    made = translate(file, team)
    for note in made.notes:
        printed.note(render.wrap(f"note: {note}"))
    if out is None:
        printed.show(made.content, made.text)
        return
    try:
        with out.open("x", encoding="utf-8") as target:
            target.write(f"{made.text}\n")
    except OSError as error:
        raise CliError(f"cannot write {out}: {error.strerror}", code=ExitCode.USAGE) from None
    printed.show({"out": str(out)}, f"{out}: check it with gangline study submit --dry-run")
