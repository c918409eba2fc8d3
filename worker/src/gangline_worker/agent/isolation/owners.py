"""The users of teams on this node, and the file that keeps their numbers."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from gangline_schemas.job_pods import team_user
from gangline_storage.durable import replace_file

from .files import Owner


class Owners:
    """One user for each team: the same on every node, unless two names fall on one number.

    The numbers in use are kept in a file. May be used by many threads.
    """

    def __init__(self, file: Path, uids: range) -> None:
        self._file = file
        self._uids = uids
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}
        if file.exists():
            kept: dict[str, int] = json.loads(file.read_text("utf-8"))
            self._known = {team: uid for team, uid in kept.items() if uid in uids}

    def of(self, team: str) -> Owner:
        """The team's user. Raises OSError when all numbers are given out."""
        with self._lock:
            if team not in self._known:
                self._known[team] = self._free(team)
                replace_file(self._file, [json.dumps(self._known).encode()])
            return Owner(self._known[team])

    def _free(self, team: str) -> int:
        taken = set(self._known.values())
        start = self._uids.index(team_user(team, self._uids))
        for step in range(len(self._uids)):
            uid = self._uids[(start + step) % len(self._uids)]
            if uid not in taken:
                return uid
        raise OSError(f"all {len(self._uids)} users of teams are given out")
