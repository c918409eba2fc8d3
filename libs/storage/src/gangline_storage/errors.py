"""Errors of an object store.

Callers tell three cases apart: the request is wrong (`InvalidKey`), the answer is no (`NotFound`,
`AlreadyExists`), the store is away or full (`StoreUnavailable`, `StoreFull`).
"""


class StoreError(Exception):
    """The store refused or failed; the message names the object and the way out."""


class InvalidKey(StoreError):
    """The key cannot name an object here; the caller must choose another one."""


class NotFound(StoreError):
    """There is no object with this key."""


class AlreadyExists(StoreError):
    """put-if-absent found an object with this key; that object is unchanged."""


class StoreFull(StoreError):
    """There is no room for the object; nothing of it was kept. Freeing space helps, a retry not."""


class StoreUnavailable(StoreError):
    """The store did not answer within the bounded retries; trying again later may succeed."""
