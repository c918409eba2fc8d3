"""The samples that a job skips after a loss that was not finite, or that leapt up.

The proposal comes from the rank that the failure names. All ranks of its gang conclude the same
from the same losses, and only they know which samples their steps took.
"""

from __future__ import annotations

from gangline_faults.core.model import Failure
from gangline_faults.core.policy.budget import Verdict
from gangline_schemas.events.faults import FailureClass
from gangline_schemas.events.workers import SampleRange

_SHOWN = 3


def leave_out(failure: Failure, verdict: Verdict) -> tuple[SampleRange, ...]:
    """All samples that the next attempt goes without, if it is for that failure; else ()."""
    lost = failure.failure_class is FailureClass.NAN and verdict.action == "restart"
    return failure.exited.left_out if lost and failure.exited is not None else ()


def in_words(left_out: tuple[SampleRange, ...]) -> str:
    """The end of the verdict's sentence; "" when nothing is left out."""
    if not left_out:
        return ""
    count = sum(part.count for part in left_out)
    shown = [_range(part) for part in left_out[-_SHOWN:]]
    earlier = "earlier ones, " if len(left_out) > _SHOWN else ""
    are = "sample is" if count == 1 else "samples are"
    return f"; {count} {are} left out from now on: {earlier}{', '.join(shown)}"


def _range(part: SampleRange) -> str:
    last = part.first + part.count - 1
    return f"{part.first}" if part.count == 1 else f"{part.first} to {last}"
