"""Bytes of artifacts by team, in SQL: what is stored, and what is being stored or removed.

A change is announced before it begins and counted when it ends. Teams whose change was cut off by
a kill, and teams not counted yet, are counted by one listing at their next change. Uploads need
none.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import sqlalchemy as sa

from gangline_mlflow.artifacts import OverLimit
from gangline_mlflow.database import transaction
from gangline_schemas.mlflow_workspace import team_of

_CREATE = """
CREATE TABLE IF NOT EXISTS gangline_artifact_bytes
(workspace VARCHAR(63) PRIMARY KEY, stored BIGINT NOT NULL, changing BIGINT NOT NULL)
"""
_FORGET = "DELETE FROM gangline_artifact_bytes WHERE changing <> 0"
_READ = "SELECT stored, changing FROM gangline_artifact_bytes WHERE workspace = :team"
_COUNTED = """
INSERT INTO gangline_artifact_bytes (workspace, stored, changing) VALUES (:team, :stored, 0)
ON CONFLICT (workspace) DO UPDATE SET stored = excluded.stored
"""
_BEGIN = """
UPDATE gangline_artifact_bytes SET changing = changing + :size
WHERE workspace = :team AND stored + changing + :size <= :limit
"""
_END = """
UPDATE gangline_artifact_bytes SET changing = changing - :size, stored = stored + :added
WHERE workspace = :team
"""
NO_LIMIT = 2**62


class Change:
    """A change in progress: bytes that may come, and those that did."""

    def __init__(self, counts: ArtifactBytes, team: str, *, limited: bool) -> None:
        self._counts, self._team, self._limited = counts, team, limited
        self._announced = 0
        self.added = 0
        """The bytes that this change has added; negative: removed."""

    def expect(self, size_bytes: int) -> None:
        """Announce that it adds up to so many bytes in all. Raises OverLimit."""
        more = size_bytes - self._announced
        if more > 0:
            self._counts._announce(self._team, more, limited=self._limited)  # noqa: SLF001
            self._announced = size_bytes

    def end(self) -> None:
        """Count it."""
        self._counts._count(self._team, self._announced, self.added)  # noqa: SLF001


class ArtifactBytes:
    """The counts of all teams. One process has them; may be used from any thread.

    Each method raises DatabaseAway.
    """

    def __init__(
        self,
        engine: sa.Engine,
        limit: int | None,
        limits: Mapping[str, int],
        listed: Callable[[str], int],
    ) -> None:
        """`limit` is each team's, `limits` those of workspaces with one of their own.

        `listed` gives the bytes of a team by a listing.
        """
        self._engine, self._limits, self._listed = engine, limits, listed
        self._limit = NO_LIMIT if limit is None else limit
        self._counting: dict[str, threading.Lock] = defaultdict(threading.Lock)
        with engine.begin() as connection:
            connection.execute(sa.text(_CREATE))
            connection.execute(sa.text(_FORGET))

    @contextmanager
    def change(self, team: str, *, size_bytes: int = 0, limited: bool = True) -> Iterator[Change]:
        """Count what the block adds, up to so many bytes, or removes. Raises OverLimit."""
        change = Change(self, team, limited=limited)
        change.expect(max(1, size_bytes))  # a kill always leaves a mark
        try:
            yield change
        finally:
            change.end()

    def recount(self, team: str) -> int:
        """Count by a listing; call it while nothing changes. Returns the bytes."""
        stored = self._listed(team)
        with transaction(self._engine) as connection:
            connection.execute(sa.text(_COUNTED), {"team": team, "stored": stored})
        return stored

    def stored(self, team: str) -> int:
        """The bytes that a team stores."""
        return self._known(team)[0]

    def is_limited(self, team: str) -> bool:
        """Whether a team may not store any number of bytes."""
        return self.limit(team) < NO_LIMIT

    def limit(self, team: str) -> int:
        """The most bytes that a team may store."""
        return self._limits.get(team, self._limit)

    def _announce(self, team: str, size: int, *, limited: bool) -> None:
        stored, changing = self._known(team)
        limit = self.limit(team) if limited else NO_LIMIT
        with transaction(self._engine) as connection:
            wanted = {"team": team, "size": size, "limit": limit}
            done = connection.execute(sa.text(_BEGIN), wanted).rowcount
        if not done:
            raise OverLimit(
                f"team {team_of(team)} uses {_shown(stored + changing)} of its "
                f"{_shown(limit)} for artifacts, uploads in progress included: "
                f"{_shown(size)} more do not fit. Delete artifacts, or ask an operator for more"
            )

    def _known(self, team: str) -> tuple[int, int]:
        with self._counting[team]:
            with transaction(self._engine) as connection:
                row = connection.execute(sa.text(_READ), {"team": team}).first()
            return (self.recount(team), 0) if row is None else (int(row[0]), int(row[1]))

    def _count(self, team: str, announced: int, added: int) -> None:
        with transaction(self._engine) as connection:
            wanted = {"team": team, "size": announced, "added": added}
            connection.execute(sa.text(_END), wanted)


def _shown(size: int) -> str:
    for unit, least in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size} bytes"
