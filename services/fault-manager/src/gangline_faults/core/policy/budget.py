"""Whether a failed attempt is started again.

1. A cause that comes again with the program, or that `restart.on` does not name: no.
2. Bad data: once. The second time a person must look at the shard.
3. A loss that is not finite: twice from the same checkpoint. It would go the same way again.
4. The breaker: `idle_max` restarts in a row that got no further than before: no, whatever is left.
5. The budget: `restart.max` restarts, of which one comes back after each `refill_commits`
   committed checkpoints: a job that gets on for long may fail often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gangline_faults.core.model import Failure, JobHistory
from gangline_faults.core.policy.limits import FaultLimits
from gangline_schemas.events.faults import FailureCause, FailureClass
from gangline_schemas.failure_policy import RestartCause, RestartPolicy

RESTART_CLASS: dict[FailureCause, RestartCause | None] = {
    FailureCause.USER_ERROR: None,  # the same program fails again
    FailureCause.OUT_OF_MEMORY: None,  # the same sizes do not fit again
    FailureCause.PROCESS: RestartCause.INFRASTRUCTURE,
    FailureCause.INFRASTRUCTURE: RestartCause.INFRASTRUCTURE,
    FailureCause.NODE: RestartCause.NODE,
    FailureCause.PREEMPTION: RestartCause.PREEMPTION,
    FailureCause.HANG: RestartCause.HANG,
}
"""Which class of `restart.on` a cause belongs to; None: never restarted."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How far a failed attempt got: the last step that is known, and how long it was there."""

    last_step: int | None = None
    ran_s: float = 0.0


NAN_ROLLBACKS = 2
LONG_RUN_S = 600.0
"""An attempt without known steps has made progress when it ran for so long."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The action and its reason; the restarts used by then, and those without progress."""

    action: Literal["restart", "fail"]
    message: str
    restarts_used: int
    restarts_idle: int


def judge(
    failure: Failure,
    policy: RestartPolicy,
    history: JobHistory,
    attempt: Attempt,
    limits: FaultLimits,
) -> Verdict:
    """Restart within what the job names and may use; else fail and say what was in the way."""
    used, idle = history.restarts_used, idle_restarts(history, attempt)
    against = _against(failure, policy, history, idle, limits)
    if against is None:
        return Verdict("restart", failure.message, used + 1, idle)
    return Verdict("fail", f"{against}{failure.message}", used, idle)


def _against(
    failure: Failure,
    policy: RestartPolicy,
    history: JobHistory,
    idle: int,
    limits: FaultLimits,
) -> str | None:
    """The reason against a restart, as the beginning of the message; None: there is none."""
    restart_class = RESTART_CLASS[failure.cause]
    if restart_class is None:
        return ""
    if restart_class not in policy.on:
        return f"not restarted: restart.on does not name {restart_class.value}; "
    again = _again(failure, history)
    if again is not None:
        return again
    times = f"failed {history.failures + 1} time{'s' if history.failures else ''}"
    if limits.idle_max and idle >= limits.idle_max:
        step = _step(history.furthest_step, "its first step")
        return f"{times}; the last {idle} restarts did not get beyond {step}; last: "
    if history.restarts_used >= policy.max:
        return f"{times}; restart.max is {policy.max}; last: "
    return None


def _again(failure: Failure, history: JobHistory) -> str | None:
    """A class of failure that the job had before, and that no further restart repairs."""
    if failure.failure_class is FailureClass.DATA and history.data_failures:
        return "bad data again after a restart: check the shard; "
    if failure.failure_class is FailureClass.NAN and nan_rollbacks(history) >= NAN_ROLLBACKS:
        return (
            f"the same again after {NAN_ROLLBACKS} restarts from {_step(history.nan_step)}: "
            "check the data, the learning rate and the precision; "
        )
    return None


def nan_rollbacks(history: JobHistory) -> int:
    """How many restarts after a loss that was not finite began where the next one would."""
    return history.nan_rollbacks if history.nan_step == history.committed_step else 0


def _step(step: int | None, beginning: str = "the beginning") -> str:
    return beginning if step is None else f"step {step}"


def idle_restarts(history: JobHistory, attempt: Attempt) -> int:
    """How many restarts in a row, the one that now failed included, got no further than before."""
    if not history.failures or history.advanced:
        return 0
    if attempt.last_step is None and history.furthest_step is None:
        return 0 if attempt.ran_s >= LONG_RUN_S else history.restarts_idle + 1
    last = -1 if attempt.last_step is None else attempt.last_step
    furthest = -1 if history.furthest_step is None else history.furthest_step
    return 0 if last > furthest else history.restarts_idle + 1


def used_after_commit(history: JobHistory, limits: FaultLimits) -> int:
    """Restarts that count as used once the job has committed another checkpoint."""
    used = history.restarts_used
    if used and limits.refill_commits and history.commits + 1 >= limits.refill_commits:
        return used - 1
    return used
