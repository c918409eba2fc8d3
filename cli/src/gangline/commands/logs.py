"""`gangline logs, restore`."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline import render
from gangline.api_models import LogLine
from gangline.commands.jobs import JobId
from gangline.output import Output
from gangline.session import Session


def logs(
    session: Session,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until it ends.")] = False,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only this attempt.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines.")] = None,
) -> None:
    """What the ranks wrote, each line after its rank's number."""
    lines = session.client.logs(job_id, rank=rank, attempt=attempt, tail=tail, follow=follow)
    printer = LogPrinter(session.out)
    try:
        for line in lines:
            printer.print(line)
    except KeyboardInterrupt:
        session.out.note("the job goes on")
    if not printer.printed:
        session.out.note("no lines yet; see: gangline show " + job_id)


class LogPrinter:
    """Prints lines, and where another attempt begins."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._attempt = 0
        self.printed = 0

    def print(self, line: LogLine) -> None:
        """One line of one rank."""
        if line.attempt != self._attempt and (self._attempt or line.attempt > 1):
            self._out.note(f"-- attempt {line.attempt} --")
        self._attempt = line.attempt
        self.printed += 1
        self._out.line(line, f"[{line.rank}] {render.log_text(line.text)}")


def restore(
    session: Session,
    job_id: JobId,
    step: Annotated[int, typer.Argument(min=0, help="A step of `gangline checkpoints JOB`.")],
) -> None:
    """Go on from a step's checkpoint: the same job, or a new one if it has ended."""
    done = session.client.restore(job_id, step)
    goes_on = "goes on" if done.run_id == job_id else "is a new run that starts"
    session.out.show(done, f"{done.run_id} {goes_on} from step {done.step}")
