"""`gangline models`: gates, versions, evidence, promotions and rollbacks."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gangline import render
from gangline.commands.rows_file import read_scores
from gangline.errors import CliError, ExitCode
from gangline.render import NONE, Column
from gangline.session import Session
from gangline_schemas.api.models import Alias, Drift, Lineage, ModelRow, Move, VersionRow
from gangline_schemas.gate_file import GateFileError, read_gate
from gangline_schemas.job_file import write_yaml
from gangline_schemas.models import Finding, ServingReport

Name = Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")]
Number = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="A version's number.")]
AliasName = Annotated[str, typer.Option("--alias", help="A protected alias.")]
Team = Annotated[str | None, typer.Option(help="Needed if you see the name in several teams.")]


def models(session: Session, *, team: Team = None) -> None:
    """Models with a gate or registered versions."""
    found = session.client.models(team=team)
    session.out.listing(found, _models(), "no models; `gangline models gate apply FILE` adds one")


def show(session: Session, name: Name, *, team: Team = None) -> None:
    """A model: its aliases, versions with evidence, and the newest promotions."""
    found = session.client.model(name, team=team)
    now = datetime.now(UTC)
    lines = [f"{found.model} of team {found.team}", *map(_alias_line, found.aliases)]
    if not found.has_gate:
        lines.append("no gate: aliases are not protected")
    if found.catalogue_behind:
        lines.append("MLflow does not show the newest moves yet")
    if found.version_list:
        lines += ["", render.listing(_versions(now), found.version_list)]
    for promotion in found.promotions[:3]:
        verdict = promotion.verdict or "waits for comparisons"
        what = f"version {promotion.version} to {promotion.alias}: {verdict}"
        lines += ["", f"promotion {promotion.promotion}: {what}"]
        lines += [_finding(one) for one in promotion.findings]
    session.out.show(found, "\n".join(lines))


def gate_apply(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A gate.yaml.")],
) -> None:
    """Protect aliases of a model by the conditions of a gate file, or replace its gate."""
    try:
        gate = read_gate(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        raise CliError(f"{file} is not text in UTF-8", code=ExitCode.USAGE) from None
    except GateFileError as error:
        raise CliError(
            str(error), "the fields are described in docs/reference/gate-file.md", ExitCode.USAGE
        ) from None
    found = session.client.set_gate(gate)
    names = ", ".join(one.alias for one in found.aliases)
    session.out.show(found, f"{found.model}: protected aliases: {names}")


def gate_show(session: Session, name: Name, *, team: Team = None) -> None:
    """The gate of a model, as a gate file."""
    found = session.client.model(name, team=team)
    if found.gate is None:
        raise CliError(f"{name} has no gate", "see: gangline models gate apply", ExitCode.NOT_FOUND)
    fields = found.gate.model_dump(mode="json", exclude_defaults=True)
    session.out.show(found.gate, write_yaml({"version": found.gate.version, **fields}).rstrip())


def gate_remove(session: Session, name: Name, *, team: Team = None) -> None:
    """Protect a model's aliases no longer; MLflow's clients may move them again."""
    session.client.remove_gate(name, team=team)
    session.out.show({"model": name, "gate": None}, f"{name} has no gate any more")


def register(
    session: Session,
    name: Name,
    *,
    job: Annotated[str | None, typer.Option(help="The job with a promoted checkpoint.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Its step; default: the newest promoted one.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Or a version that MLflow has already.")
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(help="The data; default: those that the job names or reads.")
    ] = None,
    description: Annotated[str, typer.Option(help="Shown with the version.")] = "",
    team: Team = None,
) -> None:
    """Register a checkpoint that validated itself as a version of a model."""
    if (job is None) == (version is None):
        raise CliError("give --job or --version", code=ExitCode.USAGE)
    made = session.client.register(
        name, job=job, step=step, version=version, snapshot=snapshot,
        description=description, team=team,
    )  # fmt: skip
    session.out.show(made, f"{name} version {made.version}{_of(made)}")


def report(
    session: Session,
    name: Name,
    version: Number,
    *,
    suite: Annotated[str, typer.Option(help="The suite, as the gate names it.")],
    scores: Annotated[
        Path, typer.Option(help="JSON {item: score}, or JSON lines or CSV with id and score.")
    ],
    job: Annotated[str | None, typer.Option(help="The job that measured them.")] = None,
    team: Team = None,
) -> None:
    """Report the scores of a version's items in a suite. Higher is better."""
    made = session.client.report_scores(
        name, version, suite, read_scores(scores), job=job, team=team
    )
    one = made.evaluations[suite]
    session.out.show(made, f"{name} version {version}: {suite} {one.mean:.4g} on {one.items:,}")


def serving(
    session: Session,
    name: Name,
    version: Number,
    *,
    file: Annotated[Path, typer.Option(help="JSON as the step `export` writes it.")],
    team: Team = None,
) -> None:
    """Report what an exported version needs when it serves: size, latency, memory."""
    try:
        measured = ServingReport.decode(file.read_bytes())
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}", code=ExitCode.USAGE) from None
    except ValueError as error:
        raise CliError(f"{file}: {error}", code=ExitCode.USAGE) from None
    made = session.client.report_serving(name, version, measured, team=team)
    session.out.show(made, f"{name} version {version}: {measured.format} is reported")


def approve(
    session: Session,
    name: Name,
    version: Number,
    *,
    comment: Annotated[str, typer.Option(help="For the others, such as: read 50 answers.")] = "",
    team: Team = None,
) -> None:
    """Approve a version in your name."""
    made = session.client.approve_version(name, version, comment=comment, team=team)
    counted = sum(one.counts for one in made.approvals)
    text = f"{name} version {version} has {counted} approvals that count"
    if not made.approvals[-1].counts:
        text += "; yours does not: you registered it, or the gate names other approvers"
    session.out.show(made, text)


def check(
    session: Session,
    name: Name,
    version: Number,
    *,
    alias: Annotated[str | None, typer.Option(help="Default: the gate's first.")] = None,
    team: Team = None,
) -> None:
    """Ask the gate about a version. Nothing moves. Exits with 100 unless it passes."""
    found = session.client.check_version(name, version, alias=alias, team=team)
    against = f"version {found.baseline}" if found.baseline else "no version"
    lines = [f"{found.verdict}: version {version} for {found.alias}, against {against}"]
    session.out.show(found, "\n".join([*lines, *map(_finding, found.findings)]))
    if found.verdict != "pass":
        raise typer.Exit(int(ExitCode.JOB_FAILED))


def promote(
    session: Session,
    name: Name,
    version: Number,
    *,
    alias: AliasName,
    expected: Annotated[
        int | None, typer.Option(min=0, help="Refuse unless the alias points to it; 0: nothing.")
    ] = None,
    override: Annotated[
        str | None, typer.Option(metavar="REASON", help="Move it whatever the gate says.")
    ] = None,
    person: Annotated[
        str | None, typer.Option(help="The person who decided the override; needed with it.")
    ] = None,
    team: Team = None,
) -> None:
    """Move an alias to a version, if its gate passes it. Exits with 100 if it does not."""
    if (override is None) != (person is None):
        raise CliError(
            "an override names a reason and a person", "--override REASON --person NAME",
            ExitCode.USAGE,
        )  # fmt: skip
    wish = None if override is None else {"reason": override, "person": person or ""}
    found = session.client.promote_version(
        name, version, alias=alias, expected=expected, override=wish, team=team
    )
    moved = f"{alias} moved from {found.expected or 'nothing'} to {version}"
    text = moved if found.moved else f"{alias} stays at {found.expected or 'nothing'}"
    verdict = found.verdict or "the scores are still compared"
    lines = [f"{verdict}: {text}", *map(_finding, found.findings)]
    session.out.show(found, "\n".join(lines))
    if not found.moved:
        raise typer.Exit(int(ExitCode.JOB_FAILED))


def rollback(
    session: Session,
    name: Name,
    *,
    alias: AliasName,
    to: Annotated[int | None, typer.Option(min=1, help="Default: the version before.")] = None,
    expected: Annotated[
        int | None, typer.Option(min=1, help="Refuse unless the alias points to it.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    team: Team = None,
) -> None:
    """Move an alias back to an earlier version, at once and without evidence."""
    moved = session.client.roll_back(
        name, alias=alias, to=to, expected=expected, reason=reason, team=team
    )
    text = f"{alias} moved back from {moved.from_version} to {moved.to_version}"
    session.out.show(moved, text)


def history(
    session: Session,
    name: Name,
    *,
    alias: AliasName,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, max=1000)] = 50,
    team: Team = None,
) -> None:
    """The moves of an alias, newest first."""
    found = session.client.moves(name, alias, limit=limit, team=team)
    session.out.listing(found, _moves(datetime.now(UTC)), f"{alias} never moved")


def drift(session: Session, name: Name, *, alias: AliasName, team: Team = None) -> None:
    """The age of the data of an alias's version, and how far later snapshots differ."""
    found = session.client.drift(name, alias, team=team)
    session.out.show(found, "\n".join(_drift_lines(found)))


def lineage(session: Session, name: Name, *, alias: AliasName, team: Team = None) -> None:
    """Where an alias's version comes from: checkpoint, run, code, image, seed and data."""
    found = session.client.lineage(name, alias, team=team)
    session.out.show(found, "\n".join(_lineage_lines(found)))


def _models() -> tuple[Column[ModelRow], ...]:
    return (
        Column("MODEL", lambda one: one.model, flexible=True),
        Column("TEAM", lambda one: one.team, flexible=True),
        Column("ALIASES", lambda one: ", ".join(map(_short, one.aliases)) or NONE, flexible=True),
        Column("VERSIONS", lambda one: str(one.versions), right=True),
        Column("NEWEST", lambda one: str(one.newest_version or NONE), right=True),
        Column("DATA", lambda one: _data(one.aliases)),
    )


def _short(one: Alias) -> str:
    return f"{one.alias} {one.version or NONE}"


def _data(aliases: list[Alias]) -> str:
    words = ["drift"] if any(one.drift for one in aliases) else []
    words += ["old"] if any(one.aged for one in aliases) else []
    words += ["unknown"] if any(one.data_unknown for one in aliases) else []
    return ", ".join(words) or NONE


def _alias_line(one: Alias) -> str:
    at = f"version {one.version}" if one.version else "nothing yet"
    back = f", rollback leads to {one.rollback_to}" if one.rollback_to else ""
    return f"  {one.alias}: {at}{back}"


def _versions(now: datetime) -> tuple[Column[VersionRow], ...]:
    return (
        Column("VERSION", lambda one: str(one.version), right=True),
        Column("AGE", lambda one: render.short_age(one.registered_at, now), right=True),
        Column("ALIASES", lambda one: ", ".join(one.aliases) or NONE),
        Column("CHECKPOINT", _checkpoint, flexible=True),
        Column("SCORES", _scores, flexible=True),
        Column("BY", lambda one: one.user, flexible=True),
    )


def _checkpoint(one: VersionRow) -> str:
    made = one.checkpoint
    return NONE if made is None else f"{made.job_id} step {made.step}"


def _scores(one: VersionRow) -> str:
    return ", ".join(f"{name} {each.mean:.4g}" for name, each in one.evaluations.items()) or NONE


def _of(one: VersionRow) -> str:
    return "" if one.checkpoint is None else f": {_checkpoint(one)}"


def _finding(one: Finding) -> str:
    mark = "" if one.decides else " (does not decide)"
    return render.wrap(f"{one.verdict:<12} {one.subject}: {one.text}{mark}", "  ")


def _moves(now: datetime) -> tuple[Column[Move], ...]:
    return (
        Column("NO", lambda one: str(one.number), right=True),
        Column("AGE", lambda one: render.short_age(one.at, now), right=True),
        Column("FROM", lambda one: str(one.from_version or NONE), right=True),
        Column("TO", lambda one: str(one.to_version), right=True),
        Column("KIND", lambda one: str(one.kind)),
        Column("BY", lambda one: one.by, flexible=True),
        Column("REASON", lambda one: one.reason or NONE, flexible=True),
    )


def _drift_lines(found: Drift) -> list[str]:
    lines = [f"{found.alias}: version {found.version or NONE}, data {found.snapshot or 'unknown'}"]
    if found.age_days is not None:
        limit = "" if found.limit_days is None else f" of at most {found.limit_days:g}"
        lines.append(f"age: {found.age_days:.1f} days{limit}{', too old' if found.aged else ''}")
    if found.data_unknown:
        lines.append(render.wrap(f"age and drift are not known: {found.data_unknown}"))
        if found.snapshot is not None:
            lines.append("send its profile: gangline data profile")
    for one in found.checks:
        said = one.unknown or (f"{one.found} columns moved" if one.found else "no drift")
        lines.append(f"{one.snapshot}: {said}")
        lines += [
            render.wrap(f"{column.column}: {'; '.join(column.reasons)}", "  ")
            for column in one.columns
        ]
    return lines


def _lineage_lines(found: Lineage) -> list[str]:
    run = found.run
    rows: list[tuple[str, object]] = [
        ("alias", f"{found.alias} of {found.model}, team {found.team}"),
        ("version", found.version),
        ("moved", f"{found.move.kind} by {found.move.by}" if found.move else None),
        ("checkpoint", f"{found.checkpoint.job_id} step {found.checkpoint.step}"
         if found.checkpoint else None),
        ("attempts", run.attempt if run else None),
        ("incidents", len(found.incidents) if run else None),
        ("gpu hours", f"{run.gpu_seconds / 3600:.3g}" if run else None),
        ("cost", run.cost if run else None),
        ("code", found.code_ref or found.code_bundle),
        ("image", found.image),
        ("seed", found.seed),
        ("data", found.snapshot.snapshot if found.snapshot else None),
        ("made of", ", ".join(found.snapshot.sources) or None if found.snapshot else None),
    ]  # fmt: skip
    return [f"{name:<11} {render.plain(str(value))}" for name, value in rows if value is not None]
