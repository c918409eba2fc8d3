"""Waits for the end of a job or a study; asks less often while nothing changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from gangline.errors import CliError, ExitCode

FIRST_POLL_S, LONGEST_POLL_S = 0.2, 2.0


class _Ends(Protocol):
    @property
    def ended(self) -> bool: ...
    @property
    def state(self) -> str: ...


EndsT = TypeVar("EndsT", bound=_Ends)


def until_ended(
    name: str,
    read: Callable[[], EndsT],
    timeout_s: float | None,
    on_change: Callable[[EndsT], None],
    *,
    shown: Callable[[EndsT], object],
    again: str,
) -> EndsT:
    """Read until it has ended; `on_change` gets it whenever `shown` of it is another.

    Raises CliError with code NOT_FINISHED and the hint `again` after `timeout_s`.
    """
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    delay_s, seen = FIRST_POLL_S, None
    while True:
        found = read()
        if shown(found) != seen:
            seen, delay_s = shown(found), FIRST_POLL_S
            on_change(found)
        if found.ended:
            return found
        if ends is not None and time.monotonic() >= ends:
            raise CliError(
                f"{name} is {found.state} after {timeout_s:g} s; it continues",
                again,
                ExitCode.NOT_FINISHED,
            )
        time.sleep(delay_s if ends is None else min(delay_s, max(0.0, ends - time.monotonic())))
        delay_s = min(LONGEST_POLL_S, delay_s * 1.5)
