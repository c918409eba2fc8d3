"""The rules for keys of objects: the subset that a POSIX directory and S3 both store unchanged.

A key is `part/part/part`, in UTF-8. These are rejected: empty parts, `.` and `..`, a leading or
trailing `/`, backslashes, lone surrogates, and control characters. XML 1.0 cannot write a control
character, so an S3 listing with one fails. A part must leave room for the suffix of a temporary
file name within a file system's 255 bytes. The check of ranges, which every store shares, is here
too.
"""

import re

from gangline_storage.errors import InvalidKey

MAX_KEY_BYTES = 900
"""S3 allows 1024 for the store's prefix and the key together."""

MAX_PART_BYTES = 200

TEMPORARY_PREFIX = ".gangline-tmp-"
"""Names with this beginning belong to writers that have not finished; no key may use them."""

_REFUSED = re.compile(r"[\\\x00-\x1f\x7f-\x9f\ufffe\uffff]")


def check_key(key: str) -> str:
    """Return `key` if it can name an object in every store; else raise InvalidKey."""
    _check_characters(key, what="key")
    if not key:
        raise InvalidKey("key: is empty; give a path such as 'jobs/j1/rank-00000.bin'")
    for part in key.split("/"):
        _check_part(part, key)
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if some key could begin with it ('' is every key); else raise InvalidKey."""
    _check_characters(prefix, what="prefix")
    *folders, last = prefix.split("/")
    for part in folders:
        _check_part(part, prefix)
    if last not in ("", ".", ".."):  # the last part may be cut short: '..' may begin '..x'
        _check_part(last, prefix)
    return prefix


def check_delete_prefix(prefix: str) -> str:
    """Return `prefix` if it names one folder, such as 'jobs/j1/'; else raise InvalidKey.

    Deleting by a bare beginning would let 'jobs/j1' take 'jobs/j10' with it, and deleting
    by '' would empty the store.
    """
    check_prefix(prefix)
    if not prefix.endswith("/"):
        raise InvalidKey(f"prefix: {_shown(prefix)} must end with '/' to be deleted as a folder")
    return prefix


def check_range(start: int, length: int) -> None:
    """Check a range of bytes. Raises ValueError."""
    if start < 0 or length < 0:
        raise ValueError(f"start and length must not be negative: {start}, {length}")


def _check_characters(text: str, *, what: str) -> None:
    if not isinstance(text, str):
        raise InvalidKey(f"{what}: must be a string, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"{what}: {_shown(text)} holds a lone surrogate") from None
    if size > MAX_KEY_BYTES:
        raise InvalidKey(f"{what}: {size} bytes is over the limit of {MAX_KEY_BYTES}")
    found = _REFUSED.search(text)
    if found is not None:
        character = found.group()
        kind = "non-character" if character in "\ufffe\uffff" else "character"
        raise InvalidKey(f"{what}: {_shown(text)} holds the {kind} {character!r}")


def _check_part(part: str, key: str) -> None:
    if part in ("", ".", ".."):
        raise InvalidKey(
            f"key: {_shown(key)} has the part {part!r}; "
            "a key is names joined by single '/', with none at either end"
        )
    if len(part.encode()) > MAX_PART_BYTES:
        raise InvalidKey(f"key: {_shown(key)} has a part of more than {MAX_PART_BYTES} bytes")
    if part.startswith(TEMPORARY_PREFIX):
        raise InvalidKey(f"key: {_shown(key)} has a part that begins with {TEMPORARY_PREFIX!r}")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 120 else f"{text[:117]}...")
