"""Objects that the gateway puts into the store: bundles of code, scores, profiles of data."""

from __future__ import annotations

from typing import IO

from gangline_gateway.app_context import AppContext
from gangline_gateway.problems import unavailable
from gangline_storage.errors import AlreadyExists, StoreError
from gangline_storage.port import ObjectStore


def store_of(app: AppContext) -> ObjectStore:
    """The object store. Raises a 503 problem if none is configured."""
    if app.store is None:
        raise unavailable("store-away", "no store is configured: set store_url")
    return app.store


def keep(store: ObjectStore, key: str, content: bytes | IO[bytes]) -> bool:
    """Put an object whose key names its content; whether it is new. Raises a 503 problem."""
    try:
        store.put(key, content, if_absent=True)  # type: ignore[arg-type]
    except AlreadyExists:
        return False
    except StoreError as error:
        raise unavailable("store-away", f"the store rejected it: {type(error).__name__}") from None
    return True
