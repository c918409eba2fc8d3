"""Object store port: local directory and S3.

`open_store(url)` gives an `ObjectStore`; `gangline_storage.s3` is imported only when it is used.
"""

from gangline_storage.digest import Digest, digest_bytes, digest_file, read_verified
from gangline_storage.errors import (
    AlreadyExists,
    DamagedObject,
    InvalidKey,
    NotFound,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from gangline_storage.keys import check_key, check_prefix
from gangline_storage.local import LocalStore
from gangline_storage.open import open_store
from gangline_storage.port import ObjectInfo, ObjectStore

__all__ = [
    "AlreadyExists",
    "DamagedObject",
    "Digest",
    "InvalidKey",
    "LocalStore",
    "NotFound",
    "ObjectInfo",
    "ObjectStore",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "check_key",
    "check_prefix",
    "digest_bytes",
    "digest_file",
    "open_store",
    "read_verified",
]
