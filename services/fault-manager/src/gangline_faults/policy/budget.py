"""Whether a failed attempt is started again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gangline_faults.model import Failure
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.job import RestartCause, RestartPolicy

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
class Verdict:
    """What shall happen, why, and how many restarts the job has then used."""

    action: Literal["restart", "fail"]
    message: str
    restarts_used: int


def judge(failure: Failure, policy: RestartPolicy, used: int) -> Verdict:
    """Restart within the budget and the classes that the job names; else fail and say which."""
    restart_class = RESTART_CLASS[failure.cause]
    if restart_class is None:
        return Verdict("fail", failure.message, used)
    if restart_class not in policy.on:
        reason = f"not restarted: restart.on does not name {restart_class.value}; {failure.message}"
        return Verdict("fail", reason, used)
    if used >= policy.max:
        times = f"failed {used + 1} time{'s' if used else ''}"
        reason = f"{times}; restart.max is {policy.max}; last: {failure.message}"
        return Verdict("fail", reason, used)
    return Verdict("restart", failure.message, used + 1)
