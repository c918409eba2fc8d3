"""Runs cells of the matrix on one platform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from chaos.fault import Fault
from chaos.platforms import BreakablePlatform
from chaos.world import (
    Attack,
    Broken,
    damaged_data,
    losses,
    lost_checkpoint,
    recovered_s,
    steps_repeated,
    submit,
    wrong_losses,
)
from gangline_schemas.job import JobState
from support.harnesses.log_watch import LogWatch

Curve = dict[int, set[float]]
ENDS = tuple(state for state in JobState if state.terminal)
ENDS_S = 300.0  # a job's 300 steps take 16 s on a quiet machine, minutes on one that is not


@dataclass(frozen=True)
class Outcome:
    """What came of one cell; `found` counts the damage that was found."""

    fault: str
    strategy: str
    attempts: int
    steps_repeated: int
    recovered_s: float | None
    found: int
    problem: str = ""


class Matrix:
    """Cells on one platform; the undisturbed run of a strategy is made when it is first asked."""

    def __init__(self, platform: BreakablePlatform, watch: LogWatch) -> None:
        self._platform, self._watch = platform, watch
        self._undisturbed: dict[tuple[str, str], Curve] = {}

    def run(
        self,
        cells: Iterable[tuple[Fault, str]],
        report: Callable[[Outcome], None] = lambda _: None,
    ) -> list[Outcome]:
        """The cells one after the other; `report` is called with each as it ends."""
        found = []
        for fault, strategy in cells:
            found.append(self.cell(fault, strategy))
            report(found[-1])
            self._platform.platform.supervisor.wait_ready(60)
        return found

    def cell(self, fault: Fault, strategy: str) -> Outcome:
        """One fault done to one job."""
        data = fault.data(self._platform.data_dir)
        try:
            undisturbed = {} if fault.review else self._curve(strategy, data)
        except AssertionError as error:
            problem = f"the undisturbed run: {str(error).splitlines()[0]}"
            return Outcome(fault.name, strategy, 0, 0, None, 0, problem)
        job = submit(self._watch, "chaos", strategy, data, fault.command)
        attack = Attack(self._platform, self._watch, job)
        try:
            fault.do(attack)
            problem = self._problem(attack, fault, undisturbed)
        except AssertionError as error:
            problem = str(error).splitlines()[0]
        except ProcessLookupError:
            problem = "the job was over before the fault could be done"
        self._watch.settle()
        return Outcome(
            fault.name,
            strategy,
            len(self._watch.of("gang.allocated", job)),
            steps_repeated(self._watch, job),
            recovered_s(self._watch, job),
            self._found(attack, fault),
            problem,
        )

    def _problem(self, attack: Attack, fault: Fault, undisturbed: Curve) -> str:
        """What does not hold of the job when it has ended; "" when all is well."""
        watch, job = attack.watch, attack.job
        ended = watch.wait_state(job, *ENDS, timeout_s=ENDS_S).data
        if ended.state != ("failed" if fault.review else "succeeded"):
            return f"the job {ended.state}: {ended.reason}"
        attempts = len(watch.of("gang.allocated", job))
        if fault.restarts not in (None, attempts > 1):
            return f"{attempts} attempts"
        if fault.review and not all(seen.data.review for seen in watch.of("gang.failed", job)):
            return "the job was not flagged for review"
        wrong = "" if fault.review else wrong_losses(attack, undisturbed, gaps=fault.gaps)
        found = self._found(attack, fault)
        if not wrong and bool(fault.found) != (found > 0):
            wrong = f"{found} damages were found"
        return wrong or lost_checkpoint(attack)

    def _found(self, attack: Attack, fault: Fault) -> int:
        if fault.found.startswith("data_"):
            return damaged_data(self._watch, attack.job, fault.found)
        return len(self._watch.of(fault.found or "checkpoint.corrupted", attack.job))

    def _curve(self, strategy: str, data: Mapping[str, object]) -> Curve:
        key = strategy, str(data.get("data", ""))
        if key not in self._undisturbed:
            job = submit(self._watch, "undisturbed", strategy, data)
            ended = self._watch.wait_state(job, *ENDS, timeout_s=ENDS_S).data
            if ended.state != "succeeded":
                raise Broken(f"{strategy} {ended.state}: {ended.reason}")
            self._undisturbed[key] = losses(self._watch, job)
        return self._undisturbed[key]
