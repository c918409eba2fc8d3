"""`python -m gangsim --seed N [--trace]`: run seeds, shrink what fails, replay a regression."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from gangsim.ablations import ABLATIONS
from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.plan import Plan
from gangsim.shrink import shrink, write_regression
from gangsim.world import Outcome, simulate

TELL_EVERY = 1000


def main() -> int:
    """0 when no run violated anything."""
    options = _options()
    parts = _parts(options.ablate)
    if options.regression:
        data = json.loads(options.regression.read_text(encoding="utf-8"))
        return _show(Plan.from_data(data["plan"]), parts, trace=options.trace)
    if options.seed is not None:
        plan = _plan(options.seed, options.ablate)
        code = _show(plan, parts, trace=options.trace)
        if code and options.shrink:
            _shrink(plan, parts)
        return code
    return _soak(options.start, options.seeds, options.ablate)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gangsim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--seeds", type=int, default=100, help="run so many seeds")
    parser.add_argument("--start", type=int, default=0, help="the first of --seeds")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--shrink", action="store_true", help="with --seed: shrink and keep")
    parser.add_argument("--regression", type=Path, help="run a file of tests/simulation")
    parser.add_argument("--ablate", choices=sorted(ABLATIONS), help="without this safeguard")
    return parser.parse_args()


def _show(plan: Plan, parts: Parts, *, trace: bool) -> int:
    outcome = simulate(plan, parts, keep_trace=trace)
    for line in outcome.trace:
        print(line)
    for fault in plan.faults:
        print(fault)
    print(_line(plan, outcome))
    return 1 if outcome.violation else 0


def _line(plan: Plan, outcome: Outcome) -> str:
    what = outcome.violation or "ok"
    return (
        f"seed {plan.seed}: {what} ({outcome.ended_s:.0f} virtual s, {outcome.events} decisions, "
        f"{outcome.checkpoints} checkpoints, trace {outcome.trace_hash[:16]})"
    )


def _shrink(plan: Plan, parts: Parts) -> None:
    found = shrink(plan, lambda smaller: simulate(smaller, parts).violation)
    path = write_regression(found.plan, found.violation)
    print(f"shrunk to {len(found.plan.faults)} faults in {found.runs} runs: {path}")


def _soak(start: int, count: int, ablate: str | None) -> int:
    """Run seeds, as many at once as there are CPUs; failures are printed in the order of seeds."""
    failed = 0
    began = time.perf_counter()
    with ProcessPoolExecutor() as executor:
        told = executor.map(_run_seed, range(start, start + count), repeat(ablate), chunksize=20)
        for done, line in enumerate(told, 1):
            if line:
                failed += 1
                print(line, flush=True)
            if not done % TELL_EVERY:
                spent_s = time.perf_counter() - began
                print(f"{done} of {count} seeds, {failed} failed, {spent_s:.1f} s", flush=True)
    spent_s = time.perf_counter() - began
    print(f"{count} seeds, {failed} failed, {spent_s:.1f} s", flush=True)
    return 1 if failed else 0


def _run_seed(seed: int, ablate: str | None) -> str:
    """What was violated, in a line; empty when nothing was."""
    plan = _plan(seed, ablate)
    outcome = simulate(plan, _parts(ablate))
    return _line(plan, outcome) if outcome.violation else ""


def _parts(ablate: str | None) -> Parts:
    return Parts() if ablate is None else ABLATIONS[ablate].parts()


def _plan(seed: int, ablate: str | None) -> Plan:
    if ablate is None:
        return draw(seed)
    ablation = ABLATIONS[ablate]
    return draw(seed, ablation.kinds).incremental(ablation.full_every)


if __name__ == "__main__":
    sys.exit(main())
