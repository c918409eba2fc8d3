"""`gangline pipeline`: pipelines and their runs; `gangline data announce`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from gangline import render
from gangline.commands.data import NoProfile, PlacedProfile, profile_at
from gangline.errors import CliError, ExitCode
from gangline.pipeline_file import read_pipeline_file
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.pipelines import Pipeline, PipelineRun, RunDetails, StepRow, StepWhy
from gangline_schemas.events.pipeline_requests import MAX_SOURCES
from gangline_schemas.job_file import write_yaml
from gangline_schemas.yaml_core import load_yaml

_CODES = {
    "succeeded": ExitCode.DONE,
    "failed": ExitCode.JOB_FAILED,
    "cancelled": ExitCode.CANCELLED,
}
_ORDER = (
    "succeeded", "cached", "running", "checking", "ready", "deferred", "pending", "skipped",
    "failed", "blocked", "cancelled",
)  # fmt: skip

Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
TeamName = Annotated[
    str | None, typer.Option("--team", help="If several of your teams have one so named.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the run's end.")]
Timeout = Annotated[float | None, typer.Option(min=0, help="Seconds that --wait waits at most.")]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, max=1000, help="At most this many.")]


def apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file only.")] = False,
) -> None:
    """Create a pipeline from its file, or replace it."""
    read = read_pipeline_file(file)
    try:
        applied = session.client.apply_pipeline(read, dry_run=dry_run)
    except CliError as error:
        raise read.located(error) from None
    done = "is valid" if dry_run else f"is revision {applied.revision}"
    text = f"{applied.name} of team {applied.team} {done}: {render.count(applied.steps, 'step')}"
    session.out.show(applied, text)
    if not dry_run:
        session.out.note(f"run it: gangline pipeline run {applied.name}")


def run(
    session: Session,
    name: Name,
    *,
    params: Annotated[
        list[str] | None,
        typer.Option("-p", "--param", metavar="NAME=VALUE", help="A parameter of the run."),
    ] = None,
    team: TeamName = None,
    wait: Wait = False,
    timeout: Timeout = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key gives the same run.")
    ] = None,
) -> None:
    """Run a pipeline now.

    Exit codes with --wait: 0 succeeded, 100 failed, 101 not finished, 103 cancelled.
    """
    given = _params(params or [])
    begun = session.client.run_pipeline(name, given, idempotency_key, team=team)
    if not wait:
        session.out.show(begun, begun.run_id)
        session.out.note(f"see its steps: gangline pipeline run-show {begun.run_id}")
        return
    session.out.note(f"{begun.run_id} {begun.state}; waiting for its end")
    _wait(session, begun.run_id, timeout)


def list_pipelines(session: Session) -> None:
    """Pipelines of your teams, and the last run of each."""
    now = datetime.now(UTC)
    session.out.listing(session.client.pipelines(), _pipelines(now), "no pipelines")


def show(session: Session, name: Name, *, team: TeamName = None) -> None:
    """A pipeline: its steps, triggers and last runs."""
    found = session.client.pipeline(name, team=team)
    if session.out.json:
        session.out.show(found, "")
        return
    rows = [
        ("team", found.team),
        ("revision", f"{found.revision}, by {found.user}"),
        ("steps", str(found.steps)),
        ("runs", f"{found.runs}, {found.queued} queued"),
    ]
    if found.description:
        rows.insert(0, ("about", found.description))
    if found.paused:
        rows.append(("paused", found.paused))
    for one in found.triggers:
        due = f", next {one.next_at:%Y-%m-%d %H:%M} UTC" if one.next_at else ""
        rows.append((one.name, f"{one.kind} {one.on}{due}"))
    print("\n".join(render.labelled(label, text, 14) for label, text in rows))
    if found.spec is not None:
        steps = {
            step: {"needs": [*one.needs], "in": dict(one.inputs), "out": dict(one.outputs)}
            for step, one in found.spec.steps.items()
        }
        print("\n" + write_yaml({step: _given(one) for step, one in steps.items()}).rstrip())
    runs_of = session.client.pipeline_runs(name, team=found.team, limit=5)
    if runs_of:
        print("\n" + render.listing(_runs(datetime.now(UTC)), runs_of))


def runs(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only runs of this pipeline.")
    ] = None,
    *,
    team: TeamName = None,
    limit: Limit = 20,
) -> None:
    """Runs of a pipeline, or of all; the newest first."""
    found = session.client.pipeline_runs(name, team=team, limit=limit)
    session.out.listing(found, _runs(datetime.now(UTC)), "no runs")


def run_show(
    session: Session, run_id: RunName, *, wait: Wait = False, timeout: Timeout = None
) -> None:
    """A run with its steps: which ran, which came from the cache, which failed."""
    if wait:
        _wait(session, run_id, timeout)
        return
    found = session.client.pipeline_run(run_id)
    session.out.show(found, _run_text(found))


def why(
    session: Session,
    run_id: RunName,
    step: Annotated[str, typer.Argument(metavar="STEP", help="A step of the run.")],
) -> None:
    """Why a step ran or was taken from the cache: the parts of its key, and what changed."""
    found = session.client.why_step(run_id, step)
    session.out.show(found, _why_text(found))


def download(
    session: Session,
    run_id: RunName,
    output: Annotated[
        str, typer.Argument(metavar="STEP.OUT", help="An output of a step of the run.")
    ],
    *,
    to: Annotated[
        Path | None, typer.Option(help="The folder that gets the files; default: STEP.OUT.")
    ] = None,
) -> None:
    """Download the files of a step's output, each verified by its digest."""
    step, dot, name = output.partition(".")
    if not dot:
        raise CliError(f"{output}: write it as STEP.OUT", code=ExitCode.USAGE)
    written = session.client.download_output(run_id, step, name, to or Path(output))
    session.out.show(
        {"files": [str(path) for path in written]}, "\n".join(str(path) for path in written)
    )


def retry(
    session: Session, run_id: RunName, *, wait: Wait = False, timeout: Timeout = None
) -> None:
    """Continue a run that failed, from its failed steps."""
    found = session.client.retry_pipeline_run(run_id)
    if wait:
        _wait(session, run_id, timeout)
        return
    session.out.show(found, f"{run_id} continues: {_counts(found)}")


def cancel(session: Session, run_id: RunName) -> None:
    """End a run: its jobs are asked to stop. One that is queued never begins."""
    found = session.client.cancel_pipeline_run(run_id)
    session.out.show(found, f"{run_id} is {found.state}")


def pause(session: Session, name: Name, *, team: TeamName = None) -> None:
    """Let triggers start no runs of a pipeline."""
    found = session.client.pause_pipeline(name, team=team)
    session.out.show(found, f"{found.name} is paused")


def resume(session: Session, name: Name, *, team: TeamName = None) -> None:
    """Let triggers start runs again; times that passed meanwhile start none."""
    found = session.client.pause_pipeline(name, paused=False, team=team)
    session.out.show(found, f"{found.name} is not paused")


def remove(session: Session, name: Name, *, team: TeamName = None) -> None:
    """Remove a pipeline; its runs continue."""
    found = session.client.remove_pipeline(name, team=team)
    session.out.show(found, f"{found.name} of team {found.team} is removed")


def announce(
    session: Session,
    snapshot: Annotated[
        str, typer.Argument(metavar="SNAPSHOT", help="Its whole name, as `data show` prints it.")
    ],
    *,
    team: Annotated[str, typer.Option(help="The team whose pipelines wait for it.")],
    place: Annotated[str, typer.Option(help="Where it is: a folder or a URL.")] = "",
    source: Annotated[
        list[str] | None,
        typer.Option(
            help="Data that it was made of; may be repeated; default: the files given to `prepare`."
        ),
    ] = None,
    no_profile: NoProfile = False,
) -> None:
    """Say that there is a new snapshot: pipelines that wait for such a one run.

    The profile that lies at its place is sent too.
    """
    kept = _kept(session, snapshot, place) if place and not no_profile else None
    sources = source or ([] if kept is None else kept.sources[:MAX_SOURCES])
    found = session.client.announce_snapshot(snapshot, team, place, sources)
    begun = ", ".join(found.runs) or "no new run"
    session.out.show(found, render.wrap(f"{found.snapshot} is announced: {begun}"))
    if kept is not None and kept.made_at is not None:
        session.client.send_profile(team, snapshot, kept.profile, kept.made_at)


def _kept(session: Session, snapshot: str, place: str) -> PlacedProfile | None:
    """The profile of a snapshot that lies at its place; a note if there is none."""
    try:
        kept = profile_at(place, kept=True)
    except CliError as error:
        session.out.note(f"{error}; none is sent")
        return None
    if kept.snapshot != snapshot:
        session.out.note(f"{place}: the profile there is of {kept.snapshot}; none is sent")
        return None
    return kept


def _wait(session: Session, run_id: str, timeout_s: float | None) -> None:
    out = session.out
    ended = session.client.wait_pipeline_run(run_id, timeout_s, lambda one: out.note(_counts(one)))
    out.show(ended, _run_text(ended))
    raise typer.Exit(int(_CODES.get(ended.state, ExitCode.NOT_FINISHED)))


def _params(settings: Sequence[str]) -> dict[str, Any]:
    found = {}
    for setting in settings:
        name, given, value = setting.partition("=")
        if not given or not name:
            hint = "for example -p lr=3e-4"
            raise CliError(f"-p {setting}: write it as name=value", hint, ExitCode.USAGE)
        try:
            read = load_yaml(value)
        except yaml.YAMLError:
            read = value
        found[name] = read if isinstance(read, (str, int, float, bool)) else value
    return found


def _given(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if value}


def _pipelines(now: datetime) -> tuple[Column[Pipeline], ...]:
    return (
        Column("NAME", lambda one: one.name, flexible=True),
        Column("TEAM", lambda one: one.team, flexible=True),
        Column("STEPS", lambda one: str(one.steps), right=True),
        Column("TRIGGERS", lambda one: ", ".join(t.kind for t in one.triggers) or "manual"),
        Column("RUNS", lambda one: str(one.runs), right=True),
        Column("LAST", lambda one: one.last.state if one.last else NONE),
        Column("AGE", lambda one: _age(one.last, now), right=True),
        Column("STATE", lambda one: "paused" if one.paused else "on"),
    )


def _runs(now: datetime) -> tuple[Column[PipelineRun], ...]:
    return (
        Column("RUN", lambda one: one.run_id, whole=True),
        Column("NO", lambda one: str(one.number or NONE), right=True),
        Column("STATE", lambda one: one.state),
        Column("BY", lambda one: one.kind),
        Column("AGE", lambda one: _age(one, now), right=True),
        Column("STEPS", _counts, flexible=True),
    )


def _age(run: PipelineRun | None, now: datetime) -> str:
    return NONE if run is None or run.started_at is None else render.short_age(run.started_at, now)


def _counts(run: PipelineRun) -> str:
    return ", ".join(f"{run.steps[name]} {name}" for name in _ORDER if run.steps.get(name))


def _job(step: StepRow) -> str:
    return step.study_id or ("" if step.hit else step.job_id) or NONE


def _took(step: StepRow) -> str:
    if step.started_at is None or step.ended_at is None or step.hit:
        return NONE
    return render.duration((step.ended_at - step.started_at).total_seconds())


_STEPS: tuple[Column[StepRow], ...] = (
    Column("STEP", lambda one: one.name, flexible=True),
    Column("STATE", lambda one: one.state),
    Column("TOOK", _took, right=True),
    Column("TRIES", lambda one: str(one.tries or NONE), right=True),
    Column("JOB", _job, flexible=True),
    Column("WHY", lambda one: one.reason or one.why or NONE, flexible=True),
)


def _run_text(run: RunDetails) -> str:
    rows = [
        ("pipeline", f"{run.pipeline} of team {run.team}, run {run.number}"),
        ("state", f"{run.state}: {_counts(run)}"),
        ("by", f"{run.trigger} ({run.kind}) {run.subject if run.kind != 'manual' else run.user}"),
        ("GPU-hours", f"{run.gpu_seconds / 3600:.3f} in {render.count(run.jobs, 'job')}"),
    ]
    if run.reason:
        rows.append(("reason", run.reason))
    head = "\n".join(render.labelled(label, text, 11) for label, text in rows)
    return f"{head}\n\n{render.listing(_STEPS, run.step_rows)}"


def _why_text(step: StepWhy) -> str:
    rows = [("state", step.state), ("why", step.why or step.reason or "it has no key yet")]
    if step.hit:
        rows.append(("made by", step.hit))
    if (start := step.starts_from) is not None:
        place = f"step {start.checkpoint.step} of {start.checkpoint.job_id}"
        named = f"{start.model}@{start.alias}, version {start.version}"
        rows.append(("starts from", f"{named}: {place}"))
    if step.reason and step.why:
        rows.append(("reason", step.reason))
    if step.key:
        rows.append(("key", step.key))
    rows += [(f"  {name}", digest) for name, digest in step.parts.items()]
    rows += [
        ("out", f"{one.name}  {one.digest}  {_size(one.size_bytes, one.value)}")
        for one in step.outputs
    ]
    return "\n".join(render.labelled(label, text, 14) for label, text in rows)


def _size(size_bytes: int, value: float | None) -> str:
    return render.size(size_bytes) if value is None else f"{value:g}"
