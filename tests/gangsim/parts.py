"""What a simulated platform is built from. An ablation replaces one of these by a worse one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decider
from gangline_checkpoints.core.decide import CheckpointDecider
from gangline_faults.core.decide import FaultDecider
from gangline_faults.core.policy.timing import Timing
from gangline_quota.core.decide import Quota
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy, Preemption
from gangline_scheduler.core.policy.configured import Limits
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.membership import AgentLimits
from gangsim.bus import SimBroker

HEARTBEAT_S = 5.0
LEASE_S = 45.0
TIMEOUT_S = 60.0
GUARD_S = 60.0


def _scheduler() -> Decider[Any, Any]:
    second = timedelta(seconds=1)
    preemption = Preemption(
        checkpoint=second, restart=second, min_runtime=10 * second, nearly_done=10 * second
    )
    policy = Policy(reserve_after=timedelta(seconds=GUARD_S), preemption=preemption)
    return Scheduler(Limits(), policy)


def _faults() -> Decider[Any, Any]:
    return FaultDecider(
        Timing(
            heartbeat_timeout_s=TIMEOUT_S,
            heartbeat_interval_s=HEARTBEAT_S,
            hang_min_s=5,
            deaf_after_s=TIMEOUT_S / 2,
        )
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """The real parts by default. `patches` are (module or class, name, value), undone after.

    `snapshot_every`: leaders write snapshots after so many events and heirs begin with them.
    """

    broker: type[SimBroker] = SimBroker
    loop: type[DeciderLoop[Any]] = DeciderLoop
    quota: Callable[[], Decider[Any, Any]] = Quota
    scheduler: Callable[[], Decider[Any, Any]] = _scheduler
    faults: Callable[[], Decider[Any, Any]] = _faults
    checkpoints: Callable[[], Decider[Any, Any]] = CheckpointDecider
    agent: type[AgentCore] = AgentCore
    limits: AgentLimits = field(default_factory=lambda: AgentLimits(HEARTBEAT_S, LEASE_S))
    snapshot_every: int | None = None
    patches: tuple[tuple[object, str, object], ...] = ()
