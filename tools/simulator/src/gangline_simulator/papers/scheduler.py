"""The scheduler with the passes of a published simulator: one for each tick, and only then.

The simulators look at the queue once a second, after all ends and arrivals of that second; the
live scheduler looks after each input. So here inputs are taken as ever and lead to no pass. A tick
runs the live scheduler's pass (`cycle.py`), or the one of a preemptive policy (`rebalance.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gangline_bus.codec import Received
from gangline_bus.decision import Decision, Input, Tick
from gangline_scheduler.core import cycle, decide
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.owed import Owed
from gangline_scheduler.core.plan import Plan
from gangline_scheduler.core.policy.config import Policy
from gangline_scheduler.core.state import State
from gangline_simulator.papers import rebalance


class ReferenceScheduler(Scheduler):
    """See the module. The policy must keep no reservations."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy=policy)
        self.policy = policy

    def decide(
        self,
        state: State,
        soft: Owed | None,  # noqa: ARG002 - see Decider
        item: Input,
        now: datetime,
    ) -> Sequence[Decision]:
        """The decisions of one input; the pass, on a tick."""
        plan = Plan(state, now)
        if isinstance(item, Received):
            decide._take(plan, item.envelope.data, self._limits)  # noqa: SLF001 - the same decider
        elif isinstance(item, Tick):
            self.run_pass(plan)
        return plan.decisions

    def run_pass(self, plan: Plan) -> None:
        """One pass over the queue."""
        cycle.run_pass(plan, self.policy)


class PreemptiveScheduler(ReferenceScheduler):
    """Running jobs stand in the queue's order too; those that fall out of what fits are stopped."""

    def run_pass(self, plan: Plan) -> None:
        """One pass over the queue and the running jobs."""
        rebalance.run_pass(plan, self.policy)
