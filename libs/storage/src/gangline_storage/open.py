"""A store by its URL, so that settings name one with a single string."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from gangline_storage.errors import StoreError
from gangline_storage.local import LocalStore

if TYPE_CHECKING:
    from gangline_storage.port import ObjectStore
    from gangline_storage.s3_options import S3Credentials, S3Options

_FORMS = (
    "give file:///absolute/path, /absolute/path or "
    "s3://bucket/prefix?endpoint=http://host:port&region=name"
)
_S3_SETTINGS = frozenset({"endpoint", "region"})


def open_store(
    url: str,
    *,
    credentials: S3Credentials | None = None,
    options: S3Options | None = None,
) -> ObjectStore:
    """The store that `url` names; S3 credentials come from boto3's own chain unless given.

    Raises StoreError, with the forms that are understood. Nothing is asked of an S3 server yet.
    """
    if "\0" in url:
        raise StoreError(f"store URL: holds a NUL; {_FORMS}")
    if url.startswith("/"):
        return LocalStore(Path(url))
    try:
        parts = urlsplit(url)
        host = parts.netloc
    except ValueError as error:
        raise StoreError(f"store URL: {error}; {_FORMS}") from None
    if "@" in host:
        # Not shown: a URL is logged and listed, so it must not carry a secret.
        raise StoreError("store URL: must hold no credentials; set AWS_ACCESS_KEY_ID and its like")
    if parts.fragment:
        raise StoreError(f"store URL {url!r}: '#' is not understood; {_FORMS}")
    if parts.scheme == "file":
        if host not in ("", "localhost") or parts.query or not parts.path.startswith("/"):
            raise StoreError(f"store URL {url!r}: {_FORMS}")
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "s3":
        return _open_s3(url, host, parts.path, parts.query, credentials, options)
    raise StoreError(f"store URL {url!r}: the scheme {parts.scheme!r} is not understood; {_FORMS}")


def _open_s3(
    url: str,
    bucket: str,
    path: str,
    query: str,
    credentials: S3Credentials | None,
    options: S3Options | None,
) -> ObjectStore:
    if not bucket:
        raise StoreError(f"store URL {url!r}: has no bucket; {_FORMS}")
    settings = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(settings.keys() - _S3_SETTINGS)
    if unknown:
        # Only the name: a secret that was put here by mistake stays out of the message.
        raise StoreError(f"store URL: the setting {unknown[0]!r} is not understood; {_FORMS}")
    endpoint = settings.get("endpoint")
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise StoreError(
                f"store URL: endpoint must be http://host:port or https://host; {_FORMS}"
            )
    # boto3 takes a third of a second and 30 MB to import: local stores go without it.
    from gangline_storage.s3 import S3Store

    return S3Store(
        bucket,
        unquote(path),
        endpoint=endpoint,
        region=settings.get("region"),
        credentials=credentials,
        options=options,
    )
