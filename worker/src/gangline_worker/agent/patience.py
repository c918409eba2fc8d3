"""The store as uploads see it: what a rank saved lies on the disk, so they can wait."""

from __future__ import annotations

import threading

from gangline_storage import ObjectStore, StoreUnavailable, open_store
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options

_TRIES = 20


def patient_store(url: str, ended: threading.Event) -> ObjectStore:
    """A store in a bucket that is away is waited for: a minute, or three if nothing answers at all.

    The parts of an object that it has are not sent again. Once the agent has `ended` nothing waits.
    Raises StoreError for a URL that names no store.
    """

    def pause(seconds: float) -> None:
        if ended.wait(seconds):
            raise StoreUnavailable("the agent ends")

    return open_store(url, options=S3Options(retry=Retry(attempts=_TRIES, sleep=pause)))
