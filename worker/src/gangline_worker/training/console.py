"""Lines for people; the agent ships them as the rank's log."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line to standard output, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """One line to standard error, at once."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
