"""`gangline submit`: the plan first, then the job, then (if asked) its end."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from gangline import render
from gangline.commands import questions
from gangline.commands.logs import LogPrinter
from gangline.commands.outcome import end_with
from gangline.commands.overriding import Fields, JobPath, OtherTeam, overrides_of
from gangline.errors import CliError, ExitCode
from gangline.job_file import JobFile, read_job_file
from gangline.output import Output
from gangline.session import Session
from gangline_schemas.api.cluster import Node, Team
from gangline_schemas.api.jobs import DryRun, Job
from gangline_schemas.api.questions import WhatIf
from gangline_schemas.job import JobSpec
from gangline_schemas.resources import Resources

_READY = "ready"


def submit(  # noqa: PLR0917 -- options of a command line
    session: Session,
    file: JobPath,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; start nothing.")] = (
        False
    ),
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job's end.")] = False,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Show its log, and wait for its end.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Seconds that --wait waits at most.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key gives the same job.")
    ] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")] = False,
    settings: Fields = None,
    team: OtherTeam = None,
) -> None:
    """Submit a job file; first shows what it would run and whether it fits now.

    Exit codes with --wait or --follow: 0 succeeded, 100 failed, 101 not finished, 103 cancelled.
    """
    job_file = read_job_file(file, overrides_of(settings, team))
    client, out = session.client, session.out
    plan = client.dry_run(job_file)
    outlook = outlook_of(session, job_file)
    text = plan_text(job_file, plan, client.teams(), client.nodes(), outlook)
    if dry_run:
        out.show(plan, text)
        if plan.rejected or _fails_at_once(outlook):
            raise typer.Exit(int(ExitCode.USAGE))
        return
    out.note(text)
    if not yes and not out.json and sys.stdin.isatty():
        typer.confirm("submit it?", default=True, abort=True, err=True)
    job = client.submit(job_file, idempotency_key or uuid.uuid4().hex)
    if job.state == "rejected":
        if out.json:
            out.show(job, "")
        end_with(job, out)
    if follow:
        _follow(session, job)
    elif wait:
        _wait(session, job, timeout)
    else:
        out.show(job, job.job_id)
        out.note(f"follow it: gangline watch {job.job_id}")


def _wait(session: Session, job: Job, timeout_s: float | None) -> None:
    out = session.out
    out.note(f"{job.job_id} submitted; waiting for its end")
    try:
        ended = session.client.wait(job.job_id, timeout_s, on_change=lambda job: _note(job, out))
    except (CliError, KeyboardInterrupt) as error:
        out.show(session.client.get(job.job_id) if out.json else job, job.job_id)
        raise as_unfinished(error, job.job_id) from None
    out.show(ended, ended.job_id)
    end_with(ended, out)


def _note(job: Job, out: Output) -> None:
    if job.ended:  # reported in full at once
        return
    why = job.waiting.message if job.waiting else job.reason
    out.note(render.wrap(f"{job.state}" + (f": {why}" if why else "")))


def _follow(session: Session, job: Job) -> None:
    out = session.out
    out.line(job, job.job_id)
    printer = LogPrinter(out)
    try:
        for line in session.client.logs(job.job_id, follow=True):
            printer.print(line)
        ended = session.client.wait(job.job_id)
    except KeyboardInterrupt as error:
        raise as_unfinished(error, job.job_id) from None
    if out.json:
        out.line(ended, "")
    end_with(ended, out)


def as_unfinished(error: BaseException, job_id: str) -> CliError:
    """The error that ends a command while its job continues."""
    if isinstance(error, CliError):
        return error
    return CliError(
        f"{job_id} continues", f"watch it again: gangline watch {job_id}", ExitCode.NOT_FINISHED
    )


def outlook_of(session: Session, file: JobFile) -> WhatIf | None:
    """When the job would start; None without an answer now: it may be submitted."""
    try:
        return session.client.what_if(file)
    except CliError:
        return None


def _fails_at_once(outlook: WhatIf | None) -> bool:
    """Whether the scheduler would end the job instead of letting it wait."""
    return outlook is not None and outlook.starts == "never" and outlook.waiting is None


def plan_text(
    file: JobFile,
    plan: DryRun,
    teams: Sequence[Team],
    nodes: Sequence[Node],
    outlook: WhatIf | None = None,
) -> str:
    """The job, its team's free GPUs, and when, where and after which preemptions it would start."""
    spec = file.spec
    what = spec.run.strip().splitlines()[0] if spec.run else " ".join(spec.command)
    rows = [
        ("job", f"{spec.name}, priority {spec.priority}, {spec.strategy}"),
        ("runs", render.shorten(render.plain(what), 64)),
        ("gang", f"{_gang(spec)}{_types(spec.resources.gpu_type)}, all at once"),
    ]
    if file.bundle is not None:
        files = render.count(file.bundle.files, "file")
        rows.append(("workdir", f"{files}, {render.size(len(file.bundle.data))} packed"))
    rows.append(("team", _team_text(spec, teams)))
    rows.append(("cluster", _cluster_text(spec, nodes, outlook)))
    if outlook is not None:
        planned = questions.plan(outlook, datetime.now(UTC))
        rows += [(name, text) for name, text in planned if name not in {"closeness", "note"}]
    lines = [render.labelled(name, text, 11) for name, text in rows]
    lines += [render.labelled("note", note, 11) for note in plan.notes]
    return "\n".join(lines)


def _gang(spec: JobSpec) -> str:
    """The GPUs of its gang, in workers if these have several."""
    gpus, each = spec.resources.gpus, spec.gpus_per_worker
    if gpus == 0:
        return _without_gpus(spec.resources)
    if each == 1:
        return render.count(gpus, "GPU")
    return f"{render.count(gpus // each, 'worker')} of {each} GPUs"


def _without_gpus(need: Resources) -> str:
    where = "one node" if need.ranks == 1 else f"each of {need.ranks} nodes"
    return f"{need.cpus:g} CPUs and {need.memory_gb:g} GB on {where}"


def _types(accepted: tuple[str, ...]) -> str:
    return f" of type {' or '.join(accepted)}" if accepted else ""


def _cluster_text(spec: JobSpec, nodes: Sequence[Node], outlook: WhatIf | None) -> str:
    gpus, there = spec.resources.gpus, [node for node in nodes if node.status == _READY]
    if gpus == 0:
        free = sum(max(0.0, node.cpus - node.cpus_used) for node in there)
        text = f"{free:g} of {sum(node.cpus for node in nodes):g} CPUs are free"
        if outlook is None:
            return text
    else:
        left = sum(len(node.gpus) - node.gpus_used for node in there)
        text = f"{left} of {sum(len(node.gpus) for node in nodes)} GPUs are free"
    starts_now = left >= gpus if outlook is None else outlook.starts == "now"
    return f"{text}: {'fits now' if starts_now else 'waits for room'}"


def _team_text(spec: JobSpec, teams: Sequence[Team]) -> str:
    name, gpus = spec.team, spec.resources.gpus
    team = next((item for item in teams if item.team == name), None)
    if team is None:
        return f"{name} is not configured, or not yours"
    if gpus == 0:
        limit = "" if team.cpu_limit is None else f" of {team.cpu_limit:g}"
        return f"{name} uses {team.cpus_used:g}{limit} CPUs in jobs without GPUs"
    ceiling = team.gpu_limit + team.borrow_limit
    borrowed = f" and may borrow {team.borrow_limit}" if team.borrow_limit else ""
    text = f"{name} uses {team.gpus_used} of {team.gpu_limit} GPUs{borrowed}"
    if gpus > ceiling:
        return f"{text}: it can never use {gpus}"
    return text if team.gpus_used + gpus <= ceiling else f"{text}: waits for the team's jobs"
