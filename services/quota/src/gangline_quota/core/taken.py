"""The ids of jobs that saved, kept for ever as digests: 10 bytes each.

`Taken` has a text for each of 4,096 first pairs of characters: the rest of each digest that begins
with this pair, one after the other. So an id costs no object of its own, and a copy for a snapshot
copies 4,096 entries. Two ids share a digest of 72 bits with a chance of one in 10^15 for a million
ids; then the later id is refused.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b

Taken = dict[str, str]
_DIGEST_BYTES = 9
_FIRST, _REST = 2, 10
"""Characters: 12 in all, of 6 bits each."""


def note(taken: Taken, job_id: str) -> str:
    """Keep this id, once is enough; the key of its text."""
    first, rest = _digest(job_id)
    held = taken.get(first, "")
    if not _holds(held, rest):
        taken[first] = held + rest
    return first


def is_noted(taken: Taken, job_id: str) -> bool:
    """Whether this id was kept."""
    first, rest = _digest(job_id)
    return _holds(taken.get(first, ""), rest)


def _digest(job_id: str) -> tuple[str, str]:
    digest = blake2b(job_id.encode(), digest_size=_DIGEST_BYTES).digest()
    text = urlsafe_b64encode(digest).decode()
    return text[:_FIRST], text[_FIRST:]


def _holds(held: str, rest: str) -> bool:
    at = held.find(rest)
    while at % _REST and at >= 0:  # found across two digests
        at = held.find(rest, at + 1)
    return at >= 0
