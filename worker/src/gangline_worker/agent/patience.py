"""The store as uploads see it: what a rank saved lies on the disk, so they can wait."""

from __future__ import annotations

from gangline_storage import ObjectStore, open_store
from gangline_storage.retry import Retry
from gangline_storage.s3_options import S3Options

_TRIES = 20


def patient_store(url: str) -> ObjectStore:
    """A store in a bucket that is away is waited for: a minute, or three if nothing answers at all.

    The parts of an object that it has are not sent again. Raises StoreError for a URL that names no
    store.
    """
    return open_store(url, options=S3Options(retry=Retry(attempts=_TRIES)))
