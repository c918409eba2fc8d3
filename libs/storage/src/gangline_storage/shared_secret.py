"""A secret that Gangline's own processes share: an object of the store, made when first needed.

They have the store's credentials; users and the ranks of jobs have none.
"""

from __future__ import annotations

import secrets
import threading

from gangline_storage.errors import AlreadyExists, NotFound, StoreError
from gangline_storage.port import ObjectStore

_SECRET_BYTES = 32


class SharedSecret:
    """The secret at a key of the store. May be used from any thread."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store = store
        self._key = key
        self._lock = threading.Lock()
        self._value: bytes | None = None

    def value(self) -> bytes:
        """The 32 bytes, read once; made if there are none. Raises StoreError."""
        with self._lock:
            if self._value is None:
                self._value = self._read()
            return self._value

    def _read(self) -> bytes:
        try:
            found = self._store.get(self._key)
        except NotFound:
            try:
                made = secrets.token_bytes(_SECRET_BYTES)
                self._store.put(self._key, made, if_absent=True)
                return made
            except AlreadyExists:
                found = self._store.get(self._key)
        if len(found) != _SECRET_BYTES:
            raise StoreError(f"{self._key} has not {_SECRET_BYTES} bytes: delete it")
        return found
