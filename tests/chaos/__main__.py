"""`PYTHONPATH=tests python -m chaos`: the fault matrix, or many kills of one job.

Exit codes: 0 every cell ended as it must, 1 one did not, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from chaos.faults import FAULTS, Fault
from chaos.matrix import STRATEGIES, Matrix, platform_to_break
from chaos.world import CHECKPOINT, HYPERPARAMETERS, Outcome
from gangline_schemas.events.requests import JobCancelRequested
from log_watch import LogWatch

COLUMNS = f"{'fault':30} {'':5} {'tries':>5} {'again':>6} {'back in':>8} {'damage':>6}  result"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--strategy", choices=STRATEGIES, help="one strategy instead of all")
    parser.add_argument("--sample", type=int, help="so many cells, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0, help="kill one job so often instead")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    return parser.parse_args(arguments)


def chosen(options: argparse.Namespace) -> list[tuple[Fault, str]]:
    """The cells that were asked for, in the order of the matrix."""
    strategies = [options.strategy] if options.strategy else STRATEGIES
    cells = [(fault, s) for fault in FAULTS if options.only in fault.name for s in strategies]
    if options.sample is not None:
        drawn = random.Random(options.seed).sample(range(len(cells)), options.sample)
        cells = [cells[index] for index in sorted(drawn)]
    return cells


def line(outcome: Outcome) -> str:
    """A row of the table, 80 columns but for what went wrong."""
    back = f"{outcome.recovered_s:.2f} s" if outcome.recovered_s is not None else "-"
    return (
        f"{outcome.fault:30} {outcome.strategy:5} {outcome.attempts:5} "
        f"{outcome.steps_repeated:6} {back:>8} {outcome.corruptions:6}  {outcome.problem or 'ok'}"
    )


def kill_often(watch: LogWatch, kills: int) -> int:
    """Kill a rank of one job once each of its attempts has committed; how many restarts came."""
    job = watch.submit(
        "phoenix",
        hyperparameters={**HYPERPARAMETERS, "steps": 1_000_000, "checkpoint_every_steps": 5},
        checkpoint=CHECKPOINT,
        restart={"max": 1000},
    )
    for number in range(1, kills + 1):
        wait_commit(watch, job, number)
        seen = [s.data for s in watch.of("worker.started", job) if s.data.attempt == number]
        os.kill(next(item.pid for item in seen if item.rank == number % 2), signal.SIGKILL)
        watch.wait_step(job, 1, attempt=number + 1)
        if number % 10 == 0:
            print(f"{number} kills, {number} restarts", flush=True)
    watch.publish(JobCancelRequested(job_id=job), job)
    watch.wait_state(job, "cancelled", "failed")
    return len(watch.of("gang.allocated", job)) - 1


def wait_commit(watch: LogWatch, job: str, attempt: int) -> None:
    """Until this attempt of the job has committed a checkpoint."""
    watch.wait_for(
        lambda s: (
            s.type == "checkpoint.committed"
            and s.data.job_id == job
            and s.data.checkpoint.attempt == attempt
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; gives the exit code."""
    options = parse(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="gangline-chaos-") as folder,
        platform_to_break(Path(folder) / "data") as platform,
        LogWatch(platform.client.bootstrap_servers) as watch,
    ):
        if options.kills:
            came_up = kill_often(watch, options.kills)
            print(f"{options.kills} kills in a row: {came_up} restarts came up")
            return 0 if came_up == options.kills else 1
        print(COLUMNS, flush=True)
        outcomes = Matrix(platform, watch).run(
            chosen(options), lambda outcome: print(line(outcome), flush=True)
        )
        watch.assert_sound()
    wrong = [outcome for outcome in outcomes if outcome.problem]
    print(f"{len(outcomes)} cells, {len(wrong)} not as they must be")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(item) for item in outcomes], indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
