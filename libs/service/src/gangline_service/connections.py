"""The connections of an HTTP server that stay open: those with a valid token are never cut.

A connection is unproven until a request on it has shown a valid token. Unproven ones have a limit
of their own: one too many ends the oldest one of the peer with the most, so a peer that opens many
ends its own. A client shows its token within milliseconds, so the oldest ones never will. Proven
ones are bounded by user and in all: one too many is refused, unless the user has an idle one that
can end instead. Not thread-safe: it belongs to one event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

UNPROVEN = 256
PROVEN = 1500
PER_USER = 200


class Connection(Protocol):
    """One open connection."""

    @property
    def idle(self) -> bool:
        """Whether no request is being read or answered."""

    def end(self) -> None:
        """Close it at once."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections may be open: without a token, with one, and of one user."""

    unproven: int = UNPROVEN
    proven: int = PROVEN
    per_user: int = PER_USER


class Connections:
    """The open connections of one server."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self._limits = limits or ConnectionLimits()
        self._unproven: dict[str, dict[Connection, None]] = {}
        self._peers: dict[Connection, str] = {}
        self._proven: dict[str, dict[Connection, None]] = {}
        self._users: dict[Connection, str] = {}

    def opened(self, connection: Connection, peer: str) -> None:
        """Count a new connection; another one ends when there are too many."""
        self._unproven.setdefault(peer, {})[connection] = None
        self._peers[connection] = peer
        if len(self._peers) > self._limits.unproven:
            most = max(self._unproven, key=lambda name: len(self._unproven[name]))
            self._end(next(iter(self._unproven[most])))

    def prove(self, connection: Connection, user: str) -> bool:
        """The connection showed this user's token. False: the user has too many, or all have."""
        if self._users.get(connection) == user:
            return True
        if not self._room_for(user):
            return False
        self.closed(connection)
        self._proven.setdefault(user, {})[connection] = None
        self._users[connection] = user
        return True

    def closed(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        for group_of, groups in ((self._peers, self._unproven), (self._users, self._proven)):
            name = group_of.pop(connection, None)
            if name is not None:
                del groups[name][connection]
                if not groups[name]:
                    del groups[name]

    def _room_for(self, user: str) -> bool:
        own = self._proven.get(user, {})
        if len(own) < self._limits.per_user and len(self._users) < self._limits.proven:
            return True
        idle = next((one for one in own if one.idle), None)
        if idle is None:
            return False
        self._end(idle)
        return True

    def _end(self, connection: Connection) -> None:
        self.closed(connection)
        connection.end()
