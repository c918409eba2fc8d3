"""`gangline reproduce`: a run again, from the same inputs."""

from __future__ import annotations

import sys
import uuid
from typing import Annotated

import typer

from gangline import render
from gangline.commands.jobs import JobId
from gangline.session import Session


def reproduce(
    session: Session,
    job_id: JobId,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what cannot be pinned.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Submit a run again: the same command, code, data, hyperparameters, seed and GPUs.

    It starts from the first step. Says first what could differ, as nothing pins it.
    """
    client, out = session.client, session.out
    plan = client.reproduction(job_id)
    out.note(f"what could differ from {job_id}:" if plan.loose else "every input is pinned")
    for item in plan.loose:
        out.note(render.wrap(f"{item.field}: {item.message}", "  "))
    if dry_run:
        out.show(plan, "")
        return
    if not yes and not out.json and sys.stdin.isatty():
        typer.confirm("submit it?", default=True, abort=True, err=True)
    job = client.submit(plan.spec, uuid.uuid4().hex)
    out.show(job, job.job_id)
    out.note(f"then compare them: gangline compare {job_id} {job.job_id}")
