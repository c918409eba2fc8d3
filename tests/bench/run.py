"""`make bench`: run the benchmarks, print one table, write JSON.

python tests/bench/run.py [--only NAME]... [--quick] [--json FILE]

A benchmark is a module `bench_NAME.py` beside this file. Exit code 0: all budgets are kept; 1: one
is not, or a benchmark failed. The table goes to stdout, progress to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import platform as machine
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from harness import Context, Result, number, read_budgets

FOLDER = Path(__file__).parent
DEFAULT_JSON = FOLDER.parent.parent / "build" / "bench.json"


@dataclass
class Outcome:
    """What one benchmark gave; `error` is the last line of its traceback."""

    name: str
    results: list[Result] = field(default_factory=list)
    error: str = ""
    took_s: float = 0.0
    load: tuple[float, float, float] = (0.0, 0.0, 0.0)


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def measure(name: str, context: Context) -> Outcome:
    """Run one benchmark; its failure is part of the report."""
    outcome = Outcome(name, load=os.getloadavg())
    started = time.perf_counter()
    try:
        outcome.results = importlib.import_module(f"bench_{name}").run(context)
    except Exception as error:
        traceback.print_exc()
        outcome.error = f"{type(error).__name__}: {error}".splitlines()[0]
    outcome.took_s = time.perf_counter() - started
    return outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Figures, spread, budget and verdict, one line each."""
    rows = [("figure", "value", "unit", "min..max", "budget", "")]
    for outcome in outcomes:
        for result in outcome.results:
            spread = (
                f"{number(result.low)}..{number(result.high)}"
                if result.low is not None and result.high is not None
                else ""
            )
            verdict = {True: "kept", False: "MISSED", None: ""}[result.met]
            budget = str(result.budget or "")
            rows.append((result.name, number(result.value), result.unit, spread, budget, verdict))
        if outcome.error:
            rows.append((outcome.name, "FAILED", "", "", "", outcome.error[:60]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            text.rjust(width) if column == 1 else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    notes = [f"{r.name}: {r.note}" for o in outcomes for r in o.results if r.note]
    loads = ", ".join(f"{outcome.name} {outcome.load[0]:.1f}" for outcome in outcomes)
    busy = f"load average before each, on {os.cpu_count()} CPUs: {loads}"
    return "\n".join([*lines, "", *notes, busy])


def report(outcomes: Sequence[Outcome], *, quick: bool) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": machine.machine(),
            "python": machine.python_version(),
        },
        "benchmarks": [
            {
                "name": outcome.name,
                "took_s": round(outcome.took_s, 1),
                "load_average": outcome.load,
                "error": outcome.error or None,
                "results": [result.as_json() for result in outcome.results],
            }
            for outcome in outcomes
        ],
    }


def main() -> int:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(description="Measure what budgets.toml bounds.")
    parser.add_argument("--only", action="append", choices=names(), help="may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, default=DEFAULT_JSON, help="where figures are written")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is ended, data goes away
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    context = Context(options.quick, read_budgets())
    outcomes = []
    for name in options.only or names():
        context.say(f"{name} (load average {os.getloadavg()[0]:.1f})")
        outcomes.append(measure(name, context))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report(outcomes, quick=options.quick), indent=2)
    options.json.write_text(f"{text}\n", encoding="utf-8")
    print(table(outcomes))
    print(f"written to {options.json}")
    missed = any(r.met is False for o in outcomes for r in o.results)
    return int(missed or any(o.error for o in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
