"""`gangline watch`: a job's life until its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gangline import render
from gangline.commands.jobs import (
    JobId,
    aged_steps,
    checkpoint_text,
    gpus,
    ranks,
    stall_text,
    steps,
)
from gangline.commands.outcome import end_with, restarts_of
from gangline.commands.submit import as_unfinished
from gangline.errors import CliError, ExitCode
from gangline.output import Output
from gangline.sdk.jobs import LINGER_S, lacks_steps
from gangline.session import Session
from gangline_schemas.api.jobs import Failure, Job

REFRESH_S = 1.0
_BAR = 30
_SPARK = 48


class LossHistory:
    """Losses by step as they were seen; a step that ran again counts once."""

    def __init__(self) -> None:
        self._by_step: dict[int, float] = {}

    def add(self, step: int | None, loss: float | None) -> None:
        """Keep what a job showed."""
        if step is not None and loss is not None:
            self._by_step[step] = loss

    @property
    def values(self) -> list[float]:
        """In the order of steps."""
        return [self._by_step[step] for step in sorted(self._by_step)]


def watch(
    session: Session,
    job_id: JobId,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Stop watching after this many seconds.")
    ] = None,
) -> None:
    """Follow a job live until its end; the exit code is the job's.

    0 succeeded, 100 failed, 101 not finished (--timeout, Ctrl-C), 103 cancelled.
    """
    out = session.out
    losses = LossHistory()
    job = session.client.get(job_id)
    if job.step:
        for curve in session.client.curves(job_id, ["loss"], points=_SPARK * 4):
            for point in curve.points:
                losses.add(point.step, point.value)
    try:
        if sys.stdout.isatty() and not out.json:
            with Live(console=Console(width=render.WIDTH), auto_refresh=False) as live:
                ended = _until_end(
                    session,
                    job,
                    timeout,
                    lambda job: live.update(
                        Text(panel(job, losses, datetime.now(UTC))), refresh=True
                    ),
                    losses,
                )
        else:
            changes = _Changes(out)
            ended = _until_end(session, job, timeout, changes.show, losses)
    except KeyboardInterrupt as error:
        raise as_unfinished(error, job_id) from None
    end_with(ended, out)


def _until_end(
    session: Session,
    job: Job,
    timeout_s: float | None,
    show: Callable[[Job], None],
    losses: LossHistory,
) -> Job:
    began = time.monotonic()
    ended_at: float | None = None
    while True:
        losses.add(job.step, job.loss)
        show(job)
        if job.ended:
            ended_at = ended_at or time.monotonic()
            if not lacks_steps(job) or time.monotonic() - ended_at >= LINGER_S:
                return job
        if timeout_s is not None and time.monotonic() - began >= timeout_s:
            raise CliError(
                f"{job.job_id} is {job.state} after {timeout_s:g} s; it continues",
                code=ExitCode.NOT_FINISHED,
            )
        time.sleep(REFRESH_S)
        job = session.client.get(job.job_id)


class _Changes:
    """Prints a line when the state, the step or the reason changes, and for each failure."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._last = ""
        self._failed = 0

    def show(self, job: Job) -> None:
        """Print the changes."""
        failure = job.failure
        if failure is not None and failure.attempt > self._failed and not job.ended:
            self._failed = failure.attempt
            self._out.note(failure_text(failure))
        if (text := line(job)) != self._last:
            self._last = text
            self._out.line(job, text)


def failure_text(failure: Failure) -> str:
    """The attempt that failed, why, its first failed rank, and the reaction."""
    who = "" if failure.first_rank is None else f", rank {failure.first_rank} first"
    return f"attempt {failure.attempt} failed ({failure.cause}{who}): {failure.action}"


def line(job: Job) -> str:
    """A job's progress on one line."""
    parts: list[str] = [job.state]
    if job.waiting is not None and not job.started_at:
        parts.append(render.plain(job.waiting.message))
    if job.step is not None:
        parts.append(f"step {steps(job)}")
        parts.append(f"loss {render.number(job.loss)}")
    if job.attempt > 1:
        parts.append(f"attempt {job.attempt}")
    if job.last_checkpoint is not None:
        parts.append(f"checkpoint {job.last_checkpoint.step}")
    return render.shorten("  ".join(parts), render.WIDTH)


def panel(job: Job, losses: LossHistory, now: datetime) -> str:
    """A job's progress on a few lines of at most 80 columns."""
    places = ", ".join(
        f"{place.node_id} ({len(place.gpus)})" if place.gpus else place.node_id
        for place in job.nodes
    )
    unit = "" if job.cpus is not None else " GPU" if job.gpus == 1 else " GPUs"
    lines = [
        f"{job.job_id}  {job.state.upper()}  attempt {job.attempt}, {restarts_of(job)}",
        f"  team {job.team}   {gpus(job)}{unit}   priority {job.priority}   {places}",
    ]
    if job.waiting is not None and not job.started_at:
        lines.append(render.wrap(f"waits: {job.waiting.message}", indent="  "))
    if job.stopping is not None:
        left = (job.stopping.deadline - now).total_seconds()
        lines.append(f"  stopping ({job.stopping.reason}), {render.duration(left)} left to save")
    if job.step is not None:
        lines.append(f"  step {aged_steps(job, now)}  {_bar(job)}")
    if job.stalled_since is not None:
        lines.append(f"  stalled: {stall_text(job, now)}")
    if losses.values:
        lines.append(f"  loss {render.number(job.loss)}  {render.sparkline(losses.values, _SPARK)}")
    if job.step is not None:
        busy = "" if job.gpu_utilization is None else f"   GPUs {job.gpu_utilization:.0f} % busy"
        lines.append(
            f"  lr {render.number(job.lr)}   "
            f"tokens/s {render.number(job.tokens_per_s)}   "
            f"mfu {render.percent(job.mfu)}{busy}"
        )
    if job.ranks is not None and job.ranks.doing.keys() != {"training"}:
        lines.append(f"  ranks: {ranks(job)}")
    lines.append(
        f"  elapsed {render.duration(job.elapsed_s)}   "
        f"remaining {render.duration(job.estimated_remaining_s)}"
    )
    lines.append(f"  last checkpoint: {checkpoint_text(job, now)}")
    if job.failure is not None and not job.ended:
        lines.append(f"  {failure_text(job.failure)}")
    return "\n".join(
        render.shorten(text, render.WIDTH) for part in lines for text in part.splitlines()
    )


def _bar(job: Job) -> str:
    if not job.total_steps or job.step is None:
        return ""
    share = min(1.0, job.step / job.total_steps)
    full = round(share * _BAR)
    return f"[{'#' * full}{'-' * (_BAR - full)}] {share:.0%}"
