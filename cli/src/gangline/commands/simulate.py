"""`gangline simulate`: a trace on a cluster under several policies, without a platform.

With gangline.replay the only place that imports the simulator, which drives the scheduler's core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gangline.errors import CliError, ExitCode
from gangline.output import Output
from gangline.session import Json, target_of

if TYPE_CHECKING:
    from gangline_simulator.ledger import PoolResult
    from gangline_simulator.run import Workload

_NOTE_EVERY_S = 5.0


def simulate(  # noqa: PLR0917 - options of a command are keywords
    context: typer.Context,
    trace: Annotated[Path, typer.Option("--trace", help="CSV of jobs: submit, duration, gpus.")],
    cluster: Annotated[Path, typer.Option("--cluster", help="CSV or YAML of nodes.")],
    policy: Annotated[
        str,
        typer.Option("--policy", help="Policies, separated by commas; an unknown name lists all."),
    ] = "gangline,fifo,sjf,tiresias",
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="FIELD=COLUMN",
            help="Column of a field: submit=when; may be repeated.",
        ),
    ] = None,
    since: Annotated[str | None, typer.Option("--from", help="First day, as 2017-10-01.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Last day, as 2017-10-07.")] = None,
    halve: Annotated[bool, typer.Option("--halve", help="Use half of each pool's nodes.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Plot of utilization and queue; .png or .svg.")
    ] = None,
    json: Json = False,
) -> None:
    """Replay a trace of jobs through the scheduler in virtual time and compare policies."""
    out = Output(json=target_of(context, json=json).json)
    names = _names(policy)
    if picture is not None:
        check_ending(picture)
    work = _read(out, trace, cluster, column or [], since, until, halve=halve)
    results = {name: _replay(out, name, work) for name in names}
    _show(out, results, picture)


def _names(policy: str) -> list[str]:
    from gangline_simulator.run import is_known, known_policies

    names = [name.strip() for name in policy.split(",") if name.strip()]
    unknown = [name for name in names if not is_known(name)]
    if unknown or not names:
        listed = "; ".join(f"{name} ({title})" for name, title in known_policies())
        what = f"policy {unknown[0]} is not known" if unknown else "no policy is named"
        raise CliError(what, f"there are {listed}", ExitCode.USAGE)
    return list(dict.fromkeys(names))


def check_ending(picture: Path) -> None:
    """A picture's file is of a kind that can be drawn. Raises CliError."""
    from gangline_simulator.picture import ENDINGS

    if picture.suffix not in ENDINGS:
        raise CliError(f"{picture}: name a {', '.join(ENDINGS)} file", code=ExitCode.USAGE)


def _read(
    out: Output,
    trace: Path,
    cluster: Path,
    columns: list[str],
    since: str | None,
    until: str | None,
    *,
    halve: bool,
) -> Workload:
    from gangline_simulator.cluster import read_cluster
    from gangline_simulator.errors import BadInputError
    from gangline_simulator.run import workload
    from gangline_simulator.trace import day, read_trace

    chosen = {}
    for item in columns:
        field, separator, name = item.partition("=")
        if not separator or not name:
            raise CliError(f"--column {item}", "give FIELD=COLUMN, submit=when", ExitCode.USAGE)
        chosen[field.strip()] = name.strip()
    try:
        first = None if since is None else day(since)
        last = None if until is None else day(until, end=True)
    except ValueError as error:
        raise CliError(str(error), "give a day like 2017-10-01", ExitCode.USAGE) from None
    try:
        jobs = read_trace(trace, chosen, since=first, until=last)
        nodes = read_cluster(cluster)
        work = workload(trace, jobs, nodes.halved() if halve else nodes)
    except BadInputError as error:
        raise CliError(str(error), "nothing was simulated", ExitCode.USAGE) from None
    gpus = sum(pool.gpus for pool, _ in work.parts)
    pools = "1 pool" if len(work.parts) == 1 else f"{len(work.parts)} pools"
    out.note(f"{work.jobs:,} jobs on {gpus:,} GPUs in {pools}")
    if work.left_out:
        out.note(f"{work.left_out:,} jobs are of teams without a pool and left out")
    if jobs.without_gpus:
        out.note(f"{jobs.without_gpus:,} rows ask for no GPU and are left out")
    return work


def _replay(out: Output, name: str, work: Workload) -> list[PoolResult]:
    from gangline_simulator.driver import StuckError
    from gangline_simulator.run import simulate as replay

    started, note = time.monotonic(), now_and_then(out)

    def show_progress(policy: str, ended: int, total: int) -> None:
        note(f"{policy}: {ended:,} of {total:,} jobs")

    try:
        results = replay(name, work, show_progress)
    except StuckError as error:
        raise CliError(f"{name}: {error}") from None
    out.note(f"{name}: done in {time.monotonic() - started:.1f} s")
    return results


def _show(out: Output, results: dict[str, list[PoolResult]], picture: Path | None) -> None:
    from gangline_simulator.measure import measure
    from gangline_simulator.table import table

    measures = [measure(name, pools) for name, pools in results.items()]
    if picture is not None:
        draw_picture(out, results, picture)
    out.show([item.data() for item in measures], "" if out.json else table(measures))


def draw_picture(out: Output, results: Mapping[str, list[PoolResult]], picture: Path) -> None:
    """Draw utilization and queue over time into a file. Raises CliError."""
    from gangline_simulator.picture import draw

    try:
        draw(results, picture)
    except OSError as error:
        raise CliError(f"cannot write {picture}: {error.strerror}") from None
    out.note(f"picture: {picture}")


def now_and_then(out: Output) -> Callable[[str], None]:
    """Notes a line, and after that none for five seconds, nor for the first five."""
    noted_s = time.monotonic()

    def note(line: str) -> None:
        nonlocal noted_s
        if time.monotonic() - noted_s >= _NOTE_EVERY_S:
            noted_s = time.monotonic()
            out.note(line)

    return note
