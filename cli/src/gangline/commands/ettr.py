"""`gangline ettr`: how much of a gang's time becomes progress, at any number of GPUs.

The model and the advice are the checkpoint service's own code; with --job the costs of saves and
restarts are what the platform measured of that job.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean, median, quantiles
from typing import Annotated, Any

import typer

from gangline import render
from gangline.errors import CliError, ExitCode
from gangline.output import Output
from gangline.render import Column
from gangline.sdk import Gangline, connect
from gangline.session import Json, target_of
from gangline_checkpoints.core.policy.ettr import (
    Costs,
    Parts,
    advised,
    expected,
    longest_down_s,
    replay,
)
from gangline_checkpoints.core.policy.interval import PRIOR, SAVES, Advice, Save, advise

RUNS, LEAST_RUNS = 200, 20
"""Runs that are simulated at each number of GPUs; the least that say how runs differ."""
FAILURES = 200_000
"""Of all runs of one number of GPUs: each takes some microseconds."""
_DAY_S = 86_400.0


@dataclass(frozen=True)
class Case:
    """The question; `saves` are measured ones, `interval_s` None: as the platform advises."""

    saves: tuple[Save, ...]
    gpu_hours: float
    detect_s: float
    restart_s: float
    interval_s: float | None
    run_s: float
    target: float


@dataclass(frozen=True)
class Answer:
    """One number of GPUs: the closed form, and the ratios of simulated runs in order."""

    gpus: int
    advice: Advice
    interval_s: float
    parts: Parts
    runs: tuple[float, ...]
    longest_down_s: float | None

    def band(self) -> tuple[float, float]:
        """The bounds of the middle 90 % of the runs."""
        cuts = quantiles(self.runs, n=20, method="inclusive")
        return cuts[0], cuts[-1]

    def data(self) -> dict[str, Any]:
        """As JSON; times in seconds, shares of wall time."""
        wall_s, (low, high) = self.parts.wall_s, self.band()
        return {
            "gpus": self.gpus,
            "mttf_s": self.advice.mtbf_s,
            "interval_s": self.interval_s,
            "limited_by": self.advice.limited_by
            if self.interval_s == self.advice.interval_s
            else "option",
            "ettr": self.parts.ettr,
            "simulated": {"runs": len(self.runs), "mean": fmean(self.runs), "p5": low, "p95": high},
            "detecting": self.parts.detecting_s / wall_s,
            "restarting": self.parts.restarting_s / wall_s,
            "lost_work": self.parts.lost_s / wall_s,
            "saving": self.parts.saving_s / wall_s,
            "longest_down_s": self.longest_down_s,
        }


def ettr(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    gpus: Annotated[
        str, typer.Option("--gpus", help="Numbers of GPUs, separated by commas.")
    ] = "128,1024,8192",
    mttf_hours: Annotated[
        float | None,
        typer.Option("--mttf-hours", min=1e-3, help="Mean time to failure in hours ..."),
    ] = None,
    mttf_gpus: Annotated[
        int, typer.Option("--mttf-gpus", min=1, help="... of a gang of this many GPUs.")
    ] = 1024,
    blocked: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds for which a save stops training.")
    ] = 0.002,
    write: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds until all ranks have written a save.")
    ] = 2.1,
    verify: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds from then until the save counts.")
    ] = 1.0,
    detect: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds until a failure is noticed.")
    ] = 60.0,
    restart: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="Seconds from then to the next step [60].", show_default=False
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="S", help="Seconds between saves; default: the advised interval."
        ),
    ] = None,
    days: Annotated[float, typer.Option(min=0.01, help="Length of a simulated run.")] = 30.0,
    target: Annotated[float, typer.Option(min=0.01, max=0.9999, help="The share to reach.")] = 0.99,
    job_id: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Use the values measured for this job."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulated failures.")] = 0,
    json: Json = False,
) -> None:
    """How much of a gang's time becomes progress when something fails every few hours."""
    platform = target_of(context, json=json)
    out = Output(json=platform.json)
    case = Case(
        saves=(Save(blocked, write, verify),),
        gpu_hours=PRIOR.gpu_hours / PRIOR.count,
        detect_s=detect,
        restart_s=60.0 if restart is None else restart,
        interval_s=interval,
        run_s=days * _DAY_S,
        target=target,
    )
    if job_id is not None:
        with connect(platform.url, platform.token, platform.data_dir, notice=out.note) as client:
            case = measured(client, job_id, case, out)
        if restart is not None:
            case = replace(case, restart_s=restart)
    if mttf_hours is not None:
        case = replace(case, gpu_hours=mttf_hours * mttf_gpus)
    try:
        answers = [answer(case, count, _draw(seed)) for count in _counts(gpus)]
    except (ValueError, OverflowError) as error:
        raise CliError(f"nothing is to be expected of this: {error}", code=ExitCode.USAGE) from None
    out.show([found.data() for found in answers], "" if out.json else _text(case, answers))


def measured(client: Gangline, job_id: str, case: Case, out: Output) -> Case:
    """The case with the job's own saves, restarts and, if it was advised, its failure rate."""
    found = client.checkpoint_list(job_id)
    healthy = [item for item in found.checkpoints if item.status in {"committed", "deleted"}]
    if not healthy:
        raise CliError(f"{job_id} has no checkpoint to measure", code=ExitCode.NOT_FOUND)
    saves = tuple(Save(it.blocked_s, it.write_s, it.verify_s) for it in healthy[:SAVES])
    case = replace(case, saves=saves)
    back = [it.recover_s for it in client.incidents(job_id).incidents if it.recover_s is not None]
    measured = f"{len(saves)} saves"
    if back:
        case = replace(case, restart_s=median(back))
        measured += f", {len(back)} restarts"
    if found.advice is not None:
        gpu_hours = found.advice.mtbf_s * healthy[0].world_size / 3600
        case = replace(case, gpu_hours=gpu_hours)
        measured += ", the failure rate that its advice rests on"
    out.note(f"measured of {job_id}: {measured}")
    return case


def answer(case: Case, gpus: int, draw: random.Random) -> Answer:
    """The closed form and the simulated runs of a gang of this size."""
    advice = advise(case.saves, gpus, 1 / case.gpu_hours)
    interval_s = advice.interval_s if case.interval_s is None else case.interval_s
    costs = Costs(advice.mtbf_s, advice.cost_s, advice.busy_s, case.detect_s, case.restart_s)
    parts = expected(costs, interval_s)
    policy = advised(case.saves, gpus) if case.interval_s is None else lambda *_: interval_s
    runs = []
    for _ in range(_runs(case.run_s / costs.mttf_s)):
        gaps = [*_until(case.run_s, costs.mttf_s, draw)]
        runs.append(replay(costs, policy, gaps, rest_s=case.run_s - sum(gaps)).ettr)
    longest_s = longest_down_s(costs, interval_s, case.target)
    return Answer(gpus, advice, interval_s, parts, tuple(sorted(runs)), longest_s)


def _runs(failures: float) -> int:
    """How many runs are simulated that fail so often each."""
    runs = int(min(RUNS, FAILURES / max(1.0, failures)))
    if runs < LEAST_RUNS:
        raise ValueError(
            f"{failures:,.0f} failures in a run are too many to simulate: fewer --days"
        )
    return runs


def _draw(seed: int) -> random.Random:
    """Each number of GPUs has the same luck."""
    return random.Random(seed)  # noqa: S311 - a simulation, no secret


def _until(end_s: float, mttf_s: float, draw: random.Random) -> Iterator[float]:
    """Gaps between failures, as long as they are over before the end."""
    now_s = 0.0
    while (gap_s := draw.expovariate(1 / mttf_s)) < end_s - now_s:
        now_s += gap_s
        yield gap_s


def _counts(gpus: str) -> list[int]:
    try:
        found = [int(part.replace("_", "")) for part in gpus.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise CliError(f"--gpus {gpus}", "give numbers with commas: 128,1024", ExitCode.USAGE)
    return list(dict.fromkeys(found))


def _text(case: Case, answers: list[Answer]) -> str:
    rows = [
        ["a failure every", *(render.duration(it.advice.mtbf_s) for it in answers)],
        ["a save every", *(render.duration(it.interval_s) for it in answers)],
        ["becomes progress", *(_share(it.parts.ettr) for it in answers)],
        ["simulated, the mean", *(_share(fmean(it.runs)) for it in answers)],
        ["90 % of runs, from", *(_share(it.band()[0]) for it in answers)],
        ["              to", *(_share(it.band()[1]) for it in answers)],
        ["lost to noticing", *(_share(it.parts.detecting_s / it.parts.wall_s) for it in answers)],
        ["  starting again", *(_share(it.parts.restarting_s / it.parts.wall_s) for it in answers)],
        ["  work done again", *(_share(it.parts.lost_s / it.parts.wall_s) for it in answers)],
        ["  saves", *(_share(it.parts.saving_s / it.parts.wall_s) for it in answers)],
        [f"{case.target:.4g} if back in", *(_longest(it.longest_down_s) for it in answers)],
    ]
    columns: list[Column[str]] = [
        Column("GPUS"),
        *(Column(f"{it.gpus:,}", right=True) for it in answers),
    ]
    runs, days = min(len(it.runs) for it in answers), case.run_s / _DAY_S
    return f"{render.table(columns, rows)}\n{runs} simulated runs of {days:g} days"


def _share(share: float) -> str:
    return f"{share * 100:.2f} %"


def _longest(seconds: float | None) -> str:
    return "out of reach" if seconds is None else render.duration(seconds)
