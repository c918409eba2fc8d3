"""Makes a failing plan small: fewer faults by ddmin, then fewer jobs, as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gangsim.plan import Fault, Plan

REGRESSIONS = Path(__file__).parent.parent / "simulation" / "regressions"
MAX_RUNS = 300


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A smaller plan that still fails, and how."""

    plan: Plan
    violation: str
    runs: int


class _Budget:
    def __init__(self, violation_of: Callable[[Plan], str]) -> None:
        self._violation_of = violation_of
        self.runs = 0
        self.last = ""

    def fails(self, plan: Plan) -> bool:
        """Run it, within the budget."""
        if self.runs >= MAX_RUNS:
            return False
        self.runs += 1
        violation = self._violation_of(plan)
        if violation:
            self.last = violation
        return bool(violation)


def shrink(plan: Plan, violation_of: Callable[[Plan], str]) -> Shrunk:
    """The smallest failing plan that was found. Raises ValueError when `plan` does not fail."""
    budget = _Budget(violation_of)
    if not budget.fails(plan):
        raise ValueError(f"the plan of seed {plan.seed} does not fail")
    plan = _fewer_faults(plan, budget)
    for job in plan.jobs:
        smaller = plan.without_jobs(frozenset({job.job_id}))
        if smaller.jobs and budget.fails(smaller):
            plan = smaller
    plan = _fewer_faults(plan, budget)
    return Shrunk(plan, budget.last, budget.runs)


def _fewer_faults(plan: Plan, budget: _Budget) -> Plan:
    """Delta debugging (Zeller): drop ever smaller chunks."""
    chunks = 2
    while len(plan.faults) >= 1:
        size = max(1, len(plan.faults) // chunks)
        for at in range(0, len(plan.faults), size):
            left: tuple[Fault, ...] = plan.faults[:at] + plan.faults[at + size :]
            if budget.fails(plan.with_faults(left)):
                plan = plan.with_faults(left)
                chunks = max(2, chunks - 1)
                break
        else:
            if size == 1:
                return plan
            chunks = min(len(plan.faults), chunks * 2)
    return plan


def write_regression(plan: Plan, violation: str, folder: Path = REGRESSIONS) -> Path:
    """Keep it as the next free number."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdigit()]
    path = folder / f"{max(taken, default=0) + 1:03d}.json"
    path.write_text(plan.to_json(violation=violation), encoding="utf-8")
    return path
