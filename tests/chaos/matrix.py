"""Runs cells of the matrix on one platform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chaos.faults import Fault
from chaos.world import Attack, Broken, Outcome, losses, problem_of, submit, summary
from log_watch import LogWatch
from platform_fixture import RunningPlatform, start_platform

STRATEGIES = ("ddp", "fsdp")


@contextmanager
def platform_to_break(folder: Path) -> Iterator[RunningPlatform]:
    """Three nodes of two slots, quick to notice what is wrong."""
    running, _ = start_platform(
        folder, nodes=3, heartbeat_timeout_s=24.0, heartbeat_interval_s=0.5, hang_min_s=5.0
    )
    with running:
        yield RunningPlatform(running, running.start(), folder)


class Matrix:
    """Cells on one platform; the undisturbed run of a strategy is made when it is first asked."""

    def __init__(self, platform: RunningPlatform, watch: LogWatch) -> None:
        self._platform, self._watch = platform, watch
        self._undisturbed: dict[str, dict[int, set[float]]] = {}

    def run(
        self,
        cells: Iterable[tuple[Fault, str]],
        told: Callable[[Outcome], None] = lambda _: None,
    ) -> list[Outcome]:
        """The cells one after the other; `told` hears of each as it ends."""
        found = []
        for fault, strategy in cells:
            found.append(self.cell(fault, strategy))
            told(found[-1])
            self._platform.platform.supervisor.wait_ready(60)
        return found

    def cell(self, fault: Fault, strategy: str) -> Outcome:
        """One fault done to one job."""
        undisturbed = self._curve(strategy)
        attack = Attack(self._platform, self._watch, submit(self._watch, "chaos", strategy))
        try:
            fault.do(attack)
            problem = problem_of(attack, undisturbed)
        except AssertionError as error:
            problem = str(error).splitlines()[0]
        except ProcessLookupError:
            problem = "the job was over before the fault could be done"
        outcome = summary(attack, fault.name, strategy, problem)
        if not outcome.problem:
            outcome = _as_expected(fault, outcome)
        return outcome

    def _curve(self, strategy: str) -> dict[int, set[float]]:
        if strategy not in self._undisturbed:
            job = submit(self._watch, "undisturbed", strategy)
            state = self._watch.wait_state(job, "succeeded", "failed").data.state
            if state != "succeeded":
                raise Broken(f"the undisturbed run of {strategy} {state}")
            self._undisturbed[strategy] = losses(self._watch, job)
        return self._undisturbed[strategy]


def _as_expected(fault: Fault, outcome: Outcome) -> Outcome:
    """The outcome, with a problem if the fault did nothing or damage was not found."""
    problem = ""
    if fault.restarts != (outcome.attempts > 1):
        problem = f"{outcome.attempts} attempts"
    elif fault.corrupts != (outcome.corruptions > 0):
        problem = f"{outcome.corruptions} corruptions were found"
    return Outcome(
        outcome.fault,
        outcome.strategy,
        outcome.attempts,
        outcome.steps_repeated,
        outcome.recovered_s,
        outcome.corruptions,
        problem,
    )
