"""The classification table: what a rank's end says about its cause."""

from __future__ import annotations

from typing import Any

import pytest

from gangline_faults.policy.classify import classify
from gangline_schemas.events.faults import FailureCause
from gangline_schemas.events.workers import ExitReason, WorkerExited


def ended(reason: ExitReason = ExitReason.FAILED, **fields: Any) -> WorkerExited:
    return WorkerExited(
        job_id="a", attempt=1, rank=0, node_id="n", incarnation="i", reason=reason, **fields
    )


@pytest.mark.parametrize(
    ("exited", "cause", "avoid_node"),
    [
        (ended(exit_code=1), FailureCause.USER_ERROR, False),
        (ended(exit_code=65), FailureCause.INFRASTRUCTURE, True),
        (ended(exit_code=74), FailureCause.INFRASTRUCTURE, True),
        (ended(exit_code=75), FailureCause.INFRASTRUCTURE, False),
        (ended(exit_code=137), FailureCause.PROCESS, False),
        (ended(signal=11), FailureCause.PROCESS, False),
        (ended(signal=9, out_of_memory=True), FailureCause.OUT_OF_MEMORY, False),
        (ended(exit_code=1, message="No space left on device"), FailureCause.INFRASTRUCTURE, True),
        (ended(ExitReason.LEASE_LOST, signal=9), FailureCause.NODE, True),
        (ended(ExitReason.LAUNCH_FAILED, exit_code=78), FailureCause.USER_ERROR, False),
        (ended(ExitReason.LAUNCH_FAILED), FailureCause.INFRASTRUCTURE, True),
    ],
)
def test_the_first_rule_that_fits_decides(
    exited: WorkerExited, cause: FailureCause, avoid_node: bool
) -> None:
    rule = classify(exited)
    assert rule is not None
    assert (rule.cause, rule.avoid_node) == (cause, avoid_node)


@pytest.mark.parametrize("reason", ["finished", "stopped", "fenced"])
def test_an_orderly_end_is_no_failure(reason: str) -> None:
    assert classify(ended(ExitReason(reason), exit_code=0)) is None
