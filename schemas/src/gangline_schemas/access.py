"""How a request was allowed: the scope of a token, and what stood for the caller."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import StringConstraints


class TokenScope(StrEnum):
    """The use of a token. Each scope includes those before it."""

    READ = "read"  # look at what the owner sees
    SUBMIT = "submit"  # also submit, change and end work of the owner's teams
    ADMIN = "admin"  # all that the owner may do

    def includes(self, other: TokenScope) -> bool:
        """Whether this scope allows what `other` allows."""
        return _ORDER.index(self) >= _ORDER.index(other)


_ORDER = (*TokenScope,)

Via = Literal["token", "session", "access-token", "sign-in", "job", "none"]
"""The proof of the caller: a token of the file, a browser's session of one, a personal access
token, a sign-in at the provider, a job's token, nothing."""
ActionName = Annotated[str, StringConstraints(pattern=r"^[a-z]+(?:[.-][a-z]+)*$", max_length=64)]
"""Such as `job.submit`."""
MOST_DAYS = 365
"""The longest life of a personal access token."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
