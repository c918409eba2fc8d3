"""Errors of an object store.

Callers handle three cases:
- the request is wrong: `InvalidKey`;
- the object is missing or present already: `NotFound`, `AlreadyExists`;
- the store is away or full: `StoreUnavailable`, `StoreFull`.
"""


class StoreError(Exception):
    """The store refused or failed; the message names the object and the way out."""


class InvalidKey(StoreError):
    """The key cannot name an object here; the caller must choose another one."""


class NotFound(StoreError):
    """The store has no object with this key."""


class DamagedObject(StoreError):
    """The object is not what its digest says."""


class AlreadyExists(StoreError):
    """put-if-absent found an object with this key; that object is unchanged."""


class StoreFull(StoreError):
    """The store has no room for the object and kept nothing of it. A retry needs free space."""


class StoreUnavailable(StoreError):
    """The store did not answer within the bounded retries; trying again later may succeed."""
