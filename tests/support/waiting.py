"""Waits for what other threads and processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 300.0
EVERY_S = 0.02


def wait_until(what: str, condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """The first true value of `condition`; fails once the time has passed."""
    ends = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < ends, f"waited {timeout_s:.0f} s in vain: {what}"
        time.sleep(EVERY_S)
    return found


def until(condition: Callable[[], object], message: str = "it never came true") -> None:
    """Waits for it. Fails with the message once the time has passed."""
    wait_until(message, condition)
