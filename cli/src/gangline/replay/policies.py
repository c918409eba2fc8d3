"""The log through other policies, beside what really happened."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from gangline import render
from gangline.commands.simulate import draw_picture, now_and_then
from gangline.errors import CliError, ExitCode
from gangline.output import Output
from gangline.render import Column
from gangline_simulator.compare import SHOWN, Difference, figures_table, pool_result
from gangline_simulator.history import Logged
from gangline_simulator.live_policies import RECORDED, known, live_policy
from gangline_simulator.versus import NoJobsError, Unended, Versus, versus

_DIFFERENCES: tuple[Column[Difference], ...] = (
    Column("JOB", lambda job: job.job_id, whole=True),
    Column("TEAM", lambda job: job.team, flexible=True),
    Column("GPUS", lambda job: str(job.gpus), right=True),
    Column("WAITED", lambda job: _wait(job.waited_s), right=True),
    Column("WOULD HAVE WAITED", lambda job: _wait(job.would_wait_s), right=True),
)
_UNENDED: tuple[Column[Unended], ...] = (
    Column("JOB", lambda job: job.job_id, whole=True),
    Column("TEAM", lambda job: job.team, flexible=True),
    Column("GPUS", lambda job: str(job.gpus), right=True),
    Column("ALLOCATED", lambda job: str(job.allocated_gpus), right=True),
    Column("ATTEMPTS", lambda job: str(job.attempts), right=True),
)


def policy_names(policy: str) -> list[str]:
    """The policies that are named, each once. Raises CliError for one that is not known."""
    named = [name.strip() for name in policy.split(",") if name.strip()]
    if not named:
        raise CliError("--policy: no policy is named", f"there are {known()}", ExitCode.USAGE)
    names = [name for name in dict.fromkeys(named) if name != RECORDED]
    for name in names:
        try:
            live_policy(name)
        except ValueError as error:
            what, _, hint = str(error).partition("; ")
            raise CliError(f"--policy: {what}", hint, ExitCode.USAGE) from None
    return names


def compare(
    out: Output,
    log: list[Logged],
    names: list[str],
    since: datetime | None = None,
    until: datetime | None = None,
) -> Versus:
    """The log through each of the policies. Raises CliError."""
    note = now_and_then(out)

    def show_progress(name: str, done: float) -> None:
        note(f"{name}: {done:.0%}")

    try:
        return versus(log, names, since=since, end=until, progress=show_progress)
    except NoJobsError:
        begin, end = since or log[0].at, until or log[-1].at
        raise CliError(
            f"no job was submitted from {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC",
            f"the log is from {log[0].at:%Y-%m-%d %H:%M:%S} to {log[-1].at:%Y-%m-%d %H:%M:%S} UTC",
            ExitCode.NOT_FOUND,
        ) from None


def show_versus(out: Output, found: Versus, picture: Path | None = None) -> None:
    """One document, or the tables; and the picture."""
    if picture is not None:
        curves = {name: [pool_result(past)] for name, past in found.histories.items()}
        draw_picture(out, curves, picture)
    if out.json:
        out.show(found.data(), "")
        return
    first = found.columns[0]
    print(
        f"{found.since:%Y-%m-%d %H:%M:%S} to {found.end:%Y-%m-%d %H:%M:%S} UTC: {first.jobs:,} "
        f"jobs, {first.jct_jobs:,} ended in all columns\n\n{figures_table(found.columns)}"
    )
    for name, differ in found.differences.items():
        print(f"\n{name}: {len(differ):,} of {first.jobs:,} jobs start at another time")
        if differ:
            print(render.listing(_DIFFERENCES, differ[:SHOWN]))
    if found.unended:
        print(f"\nnot ended in the log: {len(found.unended):,} jobs")
        print(render.listing(_UNENDED, found.unended[:SHOWN]))


def _wait(seconds: float | None) -> str:
    return "no GPUs by the end" if seconds is None else render.duration(seconds)
