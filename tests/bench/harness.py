"""What a benchmark is here: a module `bench_NAME.py` with `run(context) -> list[Result]`.

Figures are medians with their spread, because machines are shared. What a figure may be stands in
`budgets.toml`, by the figure's name; a figure without a budget is only reported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))  # for `support`, also where a benchmark is the program
SUBPROCESS_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Budget:
    """The bound that a figure keeps: at most or at least `bound`."""

    bound: float
    kind: str

    def keeps(self, value: float) -> bool:
        return value <= self.bound if self.kind == "most" else value >= self.bound

    def __str__(self) -> str:
        return f"{'<=' if self.kind == 'most' else '>='} {number(self.bound)}"


@dataclass(frozen=True, slots=True)
class Result:
    """One figure. `met` is None without a budget; `low` and `high` are its spread."""

    name: str
    value: float
    unit: str
    budget: Budget | None
    met: bool | None
    low: float | None = None
    high: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        budget = None if self.budget is None else {self.budget.kind: self.budget.bound}
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "budget": budget,
            "met": self.met,
            "low": self.low,
            "high": self.high,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Context:
    """What a benchmark is given. `quick`: fewer repeats, for trying it out."""

    quick: bool
    budgets: dict[str, Budget]

    def repeats(self, full: int, quick: int = 1) -> int:
        return quick if self.quick else full

    def result(self, name: str, value: float, unit: str, *, note: str = "") -> Result:
        """A figure that was measured once, or is a quantile already."""
        budget = self.budgets.get(name)
        met = None if budget is None else budget.keeps(value)
        return Result(name, value, unit, budget, met, note=note)

    def median(self, name: str, values: Sequence[float], unit: str, *, note: str = "") -> Result:
        """The median of repeats, with the smallest and the largest."""
        value, budget = statistics.median(values), self.budgets.get(name)
        met = None if budget is None else budget.keeps(value)
        return Result(name, value, unit, budget, met, min(values), max(values), note)

    def say(self, text: str) -> None:
        """Print the progress for the person that waits."""
        print(f"  {text}", file=sys.stderr, flush=True)


def read_budgets(path: Path = FOLDER / "budgets.toml") -> dict[str, Budget]:
    """The budgets by the name of their figure. Raises ValueError for a budget without a bound."""
    found = {}
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        bounds = [(kind, entry[kind]) for kind in ("most", "least") if kind in entry]
        if len(bounds) != 1:
            raise ValueError(f"budgets.toml: {name} needs either 'most' or 'least'")
        kind, bound = bounds[0]
        found[name] = Budget(float(bound), kind)
    return found


def number(value: float) -> str:
    """As a table shows it: three significant digits below a thousand."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 0.9 < value < 1.1 else f"{value:.3g}"


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for data that goes away, whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="gangline-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def in_own_process(
    module: str, *arguments: str, timeout_s: float = SUBPROCESS_TIMEOUT_S
) -> dict[str, Any]:
    """The figures of a benchmark that needs a process of its own: `bench_NAME.py --json FILE`.

    Its exit code speaks of its budget, which is judged here; no file is a failure.
    """
    with scratch() as folder:
        report = folder / "figures.json"
        command = [sys.executable, str(FOLDER / f"{module}.py"), "--json", str(report), *arguments]
        ended = subprocess.run(
            command, check=False, timeout=timeout_s, capture_output=True, text=True
        )
        if not report.exists():
            raise RuntimeError(f"{module} failed ({ended.returncode}):\n{ended.stderr[-2000:]}")
        figures: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return figures


def as_program(measure: Callable[..., object], **options: int) -> None:
    """Be a benchmark's own process: print what `measure` gives as JSON, and write it to `--json`.

    Each of the `options`, with its default, is an argument of the program and of `measure`.
    """
    parser = argparse.ArgumentParser()
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path, help="write the figures there")
    chosen = vars(parser.parse_args())
    path = chosen.pop("json")
    text = json.dumps(measure(**chosen), indent=1)
    print(text)
    if path is not None:
        path.write_text(text, encoding="utf-8")
