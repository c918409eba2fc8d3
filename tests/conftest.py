"""Fixtures of the real parts, started once per session and only when a test asks for them."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

pytest_plugins = [
    "order",
    "support.fixtures.kafka",
    "support.fixtures.platform",
    "support.fixtures.browser",
]

settings.register_profile("gangline", deadline=None)  # a slow machine breaks no property
settings.load_profile("gangline")

_PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
# Until a service configures it: rich's tracebacks with all variables take a second of CPU each.
# On the process's own error output: clients of other tests log until the process ends, and never
# into the output of a command that is compared.
structlog.configure(
    processors=[*structlog.get_config()["processors"][:-1], _PLAIN],
    logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
)

_PR_SET_CHILD_SUBREAPER = 36


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no collection looks at it again."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _no_subreaper_for_ever() -> Iterator[None]:
    """Who played an agent inherits no orphans later: none here would collect them.

    The first process of a sandbox ends only when all that ran in it has been collected.
    """
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)
