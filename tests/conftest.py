"""Fixtures of the real parts, started once per session and only when a test asks for them."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO, cast

import pytest
import structlog
from hypothesis import settings

pytest_plugins = [
    "order",
    "support.fixtures.kafka",
    "support.fixtures.kube",
    "support.fixtures.platform",
    "support.fixtures.browser",
]

gc.disable()  # a third of the time of collecting would go into searches that find nothing

settings.register_profile("gangline", deadline=None)  # a slow machine breaks no property
settings.load_profile("gangline")

_PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


class _ErrorOutput:
    """The error output that pytest captures; once that is closed, nothing.

    Clients of other tests log until the process ends: never into a command's output that is
    compared, and an error of a log would end their threads.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> None:
        with suppress(ValueError):
            self._file.write(text)

    def flush(self) -> None:
        with suppress(ValueError):
            self._file.flush()


# Until a service configures it: rich's tracebacks with all variables take a second of CPU each.
structlog.configure(
    processors=[*structlog.get_config()["processors"][:-1], _PLAIN],
    logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _ErrorOutput(sys.stderr))),
)

_PR_SET_CHILD_SUBREAPER = 36


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no search for garbage looks at it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _no_subreaper_for_ever() -> Iterator[None]:
    """Who played an agent inherits no orphans later: none here would collect them.

    The first process of a sandbox ends only when all that ran in it has been collected.
    """
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)
