"""Removes the parts of abandoned multipart uploads, once they are old.

An agent that was killed in the middle of an upload leaves its parts there. S3 keeps and bills them,
and lists them nowhere among the objects. In a folder it is a temporary file.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from gangline_storage import ObjectStore, StoreError

log = structlog.get_logger(__name__)

_FIRST_S = 300.0  # a process that restarts often does not list the store each time
_PERIOD_S = 6 * 3600.0


def sweep(store: ObjectStore, *, older_than_s: float) -> None:
    """Remove what is that old; a store that is away is asked again the next time."""
    try:
        removed = store.remove_partial(older_than_s=older_than_s)
    except StoreError as error:
        log.warning("partial uploads not removed", reason=str(error))
        return
    if removed:
        log.info("partial uploads removed", count=removed)


def keep_sweeping(
    store: ObjectStore, *, older_than_s: float, wait: Callable[[float], bool]
) -> None:
    """Sweep every six hours. `wait(seconds)` says whether to end."""
    wait_s = _FIRST_S
    while not wait(wait_s):
        sweep(store, older_than_s=older_than_s)
        wait_s = _PERIOD_S
