"""Tokens by which nodes join: their hashes are in the object store, with their uses.

All gateways share the store. A use is an object that is put if it is absent, so a token for N
nodes lets N nodes in, however many ask at once and whichever gateway they ask.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ParamSpec, TypeVar

from gangline_gateway.problems import unavailable
from gangline_schemas.api.joining import NODE_TOKEN_PREFIX
from gangline_schemas.base import Model
from gangline_service.tokens import new_token, token_hash
from gangline_storage.errors import AlreadyExists, NotFound, StoreError
from gangline_storage.port import ObjectStore

ParamsT = ParamSpec("ParamsT")
FoundT = TypeVar("FoundT")
JOIN_PATH = "/v1/nodes/join"
NOT_VALID = (
    "the token is unknown, expired, revoked or used up; an admin makes one: gangline node token"
)
FOLDER = "platform/node-tokens/"
_TOKEN = "token.json"  # noqa: S105 -- an object's name
_ID_LETTERS = 12


def is_join(method: str, path: str) -> bool:
    """Whether a request needs a node's token instead of a user's."""
    return method == "POST" and path == JOIN_PATH


class KeptToken(Model):
    """A token as the store has it, under its hash."""

    nodes: int
    expires_at: datetime
    made_by: str


@dataclass(frozen=True, slots=True)
class ListedToken:
    """A token that is neither expired nor revoked; so many nodes `used` it."""

    token_id: str
    kept: KeptToken
    used: int


def id_of(token: str) -> str:
    """The name by which a token is listed and revoked; the token does not follow from it."""
    return _id(token_hash(token))


class NodeTokens:
    """Tokens for nodes. All methods wait for the store and may raise StoreError."""

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def make(self, nodes: int, expires_s: int, made_by: str) -> tuple[str, KeptToken]:
        """A new token for so many nodes. Those that have expired are deleted."""
        self._delete_expired()
        token = new_token(NODE_TOKEN_PREFIX)
        until = datetime.fromtimestamp(int(self._clock()) + expires_s, UTC)
        kept = KeptToken(nodes=nodes, expires_at=until, made_by=made_by)
        self._store.put(_folder(token) + _TOKEN, kept.encode(), if_absent=True)
        return token, kept

    def find(self, token: str) -> KeptToken | None:
        """The token, used up or not; None: unknown or expired."""
        if not token.startswith(NODE_TOKEN_PREFIX):
            return None
        return self._valid(_folder(token) + _TOKEN)

    def use(self, token: str, node_id: str) -> bool:
        """Let one node join. False: the token has expired or was used for all its nodes."""
        kept = self.find(token)
        if kept is None:
            return False
        folder = _folder(token) + "uses/"
        for number in range(sum(1 for _ in self._store.list(folder)), kept.nodes):
            try:
                self._store.put(f"{folder}{number}", node_id.encode(), if_absent=True)
            except AlreadyExists:  # another node was faster
                continue
            return True
        return False

    def valid(self) -> list[ListedToken]:
        """Those that let nodes in, or did until they were used up; the first to expire first."""
        found: dict[str, KeptToken] = {}
        used: Counter[str] = Counter()
        for item in self._store.list(FOLDER):
            digest, _, name = item.key.removeprefix(FOLDER).partition("/")
            if name != _TOKEN:
                used[digest] += 1
            elif (kept := self._valid(item.key)) is not None:
                found[digest] = kept
        rows = [ListedToken(_id(digest), kept, used[digest]) for digest, kept in found.items()]
        return sorted(rows, key=lambda row: (row.kept.expires_at, row.token_id))

    def revoke(self, token_id: str) -> bool:
        """Let no further node join with a token; False: there is none of that id."""
        digests = {
            item.key.removeprefix(FOLDER).partition("/")[0] for item in self._store.list(FOLDER)
        }
        gone = [digest for digest in digests if _id(digest) == token_id]
        for digest in gone:
            self._store.delete(f"{FOLDER}{digest}/{_TOKEN}")
            self._store.delete_prefix(f"{FOLDER}{digest}/")
        return bool(gone)

    def _valid(self, key: str) -> KeptToken | None:
        try:
            kept = KeptToken.decode(self._store.get(key))
        except NotFound:
            return None
        return kept if kept.expires_at.timestamp() > self._clock() else None

    def _delete_expired(self) -> None:
        for found in list(self._store.list(FOLDER)):
            if found.key.endswith(_TOKEN) and self._valid(found.key) is None:
                self._store.delete_prefix(found.key.removesuffix(_TOKEN))


async def in_store(
    work: Callable[ParamsT, FoundT], *given: ParamsT.args, **named: ParamsT.kwargs
) -> FoundT:
    """The result of a method that waits for the store, in a thread. Raises a 503 problem."""
    try:
        return await asyncio.to_thread(work, *given, **named)
    except StoreError:
        raise unavailable("store", "the object store does not answer") from None


def _id(digest: str) -> str:
    return f"n-{digest[:_ID_LETTERS]}"


def _folder(token: str) -> str:
    return f"{FOLDER}{token_hash(token)}/"
