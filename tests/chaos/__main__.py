"""`PYTHONPATH=tests python -m chaos`: the fault matrix, or one fault done many times.

Many times: to one job (`--kills`, `--cuts`), to the processes of tracking (`--tracking`), or to
those that a study passes (`--study`).

Exit codes: 0 every cell ended as it must, 1 one did not, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import structlog

from chaos.catalog import FAULTS, STRATEGIES
from chaos.fault import Fault, Place
from chaos.matrix import Matrix, Outcome
from chaos.often import cut_often, kill_often
from chaos.platforms import BreakablePlatform, apart, joined, on_one_machine
from chaos.studies import kill_during_study
from chaos.tracking import COLUMNS as KILL_COLUMNS
from chaos.tracking import kill_each
from gangline.local.stop_signals import stop_signals_interrupt
from support.harnesses.log_watch import LogWatch
from support.harnesses.two_machines import NoMachinesError

PLACES: Mapping[Place, Callable[[Path], AbstractContextManager[BreakablePlatform]]] = {
    "one machine": on_one_machine,
    "apart": apart,
    "joined": joined,
}
COLUMNS = f"{'fault':30} {'':5} {'tries':>5} {'again':>6} {'back in':>8} {'found':>6}  result"
CUT_TIMEOUT_S = 6.0
tell = partial(print, flush=True)


def pattern(text: str) -> re.Pattern[str]:
    """A regular expression, compiled."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument(
        "--only", type=pattern, default="", help="faults whose name matches this pattern"
    )
    parser.add_argument("--strategy", choices=STRATEGIES, help="one strategy instead of all")
    parser.add_argument("--sample", type=int, help="so many cells, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, help="kill one job so often instead")
    parser.add_argument("--cuts", type=int, default=0, help="cut off its node so often instead")
    parser.add_argument(
        "--tracking", type=int, default=0, help="kill each process of tracking so often instead"
    )
    parser.add_argument(
        "--study", type=int, default=0, help="so many kills during a study of twice as many trials"
    )
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[tuple[Fault, str]]:
    """The cells that were asked for, in the order of the matrix."""
    strategies = [options.strategy] if options.strategy else STRATEGIES
    asked = [fault for fault in FAULTS if options.only.search(fault.name)]
    cells = [(fault, strategy) for fault in asked for strategy in strategies]
    if options.sample is not None:
        drawn = random.Random(options.seed).sample(range(len(cells)), options.sample)
        cells = [cells[index] for index in sorted(drawn)]
    return cells


def line(outcome: Outcome) -> str:
    """A row of the table, 80 columns except for errors."""
    back = f"{outcome.recovered_s:.2f} s" if outcome.recovered_s is not None else "-"
    return (
        f"{outcome.fault:30} {outcome.strategy:5} {outcome.attempts:5} "
        f"{outcome.steps_repeated:6} {back:>8} {outcome.found:6}  {outcome.problem or 'ok'}"
    )


@contextmanager
def watched(
    place: Callable[[Path], Iterator[BreakablePlatform]],
) -> Iterator[tuple[BreakablePlatform, LogWatch]]:
    """A platform in a folder of its own, gone afterwards; its logs must be sound in the end."""
    with (
        stop_signals_interrupt(),  # what is mounted must be unmounted
        tempfile.TemporaryDirectory(prefix="gangline-chaos-") as folder,
        place(Path(folder) / "data") as platform,
        LogWatch(platform.client.bootstrap_servers) as watch,
    ):
        yield platform, watch
        watch.assert_sound()


def matrix(cells: list[tuple[Fault, str]]) -> list[Outcome]:
    """Do them, one place after the other."""
    outcomes: list[Outcome] = []
    tell(COLUMNS)
    for name, place in PLACES.items():
        mine = [cell for cell in cells if cell[0].place == name]
        if not mine:
            continue
        possible, why = [], "it takes the right to mount"
        try:
            with watched(place) as (platform, watch):
                possible = [cell for cell in mine if platform.disks or not cell[0].disk]
                outcomes += Matrix(platform, watch).run(possible, lambda found: tell(line(found)))
        except NoMachinesError as error:
            why = str(error)
        for fault, strategy in mine:
            if (fault, strategy) not in possible:
                tell(f"{fault.name:30} {strategy:5} was not done: {why}")
    return outcomes


def tracking_kills(options: argparse.Namespace) -> int:
    """Kill the processes that points of metrics pass; gives the exit code."""
    with stop_signals_interrupt(), tempfile.TemporaryDirectory(prefix="gangline-chaos-") as folder:
        tell(f"     {KILL_COLUMNS}")
        total = kill_each(Path(folder), options.tracking, options.seed, tell)
    for victim, found in total.items():
        tell(f"all  {victim:9} {found}")
    if options.json is not None:
        rows = {victim: asdict(found) for victim, found in total.items()}
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(found.wrong for found in total.values()))


def study_kills(options: argparse.Namespace) -> int:
    """Kill the processes that a study passes; gives the exit code."""
    with watched(on_one_machine) as (platform, watch):
        found = kill_during_study(platform, watch, options.study, options.seed, tell)
    for row in found.rows():
        tell(row)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=1))
    return int(found.wrong)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; gives the exit code."""
    options = parse(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    if options.kills:
        with watched(on_one_machine) as (platform, watch):
            came_up = kill_often(platform, watch, options.kills, tell)
        tell(f"{options.kills} kills in a row: {came_up} restarts came up")
        return 0 if came_up == options.kills else 1
    if options.cuts:
        with watched(partial(apart, heartbeat_timeout_s=CUT_TIMEOUT_S)) as (platform, watch):
            came_up = cut_often(platform, watch, options.cuts, tell)
        tell(f"{options.cuts} cuts in a row: {came_up} restarts, each after its ranks were dead")
        return 0 if came_up >= options.cuts else 1
    if options.tracking:
        return tracking_kills(options)
    if options.study:
        return study_kills(options)
    outcomes = matrix(chosen(options))
    wrong = [outcome for outcome in outcomes if outcome.problem]
    tell(f"{len(outcomes)} cells, {len(wrong)} not as they must be")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(item) for item in outcomes], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
