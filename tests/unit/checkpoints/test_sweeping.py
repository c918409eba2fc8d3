"""What uploads left behind goes when it is old, and a store that is away ends nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from gangline_checkpoints.service.sweeping import keep_sweeping, sweep
from gangline_storage import LocalStore
from gangline_storage.errors import StoreUnavailable
from gangline_storage.keys import TEMPORARY_PREFIX


def test_only_what_is_old_goes(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("teams/nlp/object", b"whole")
    old, new = (tmp_path / "teams" / "nlp" / f"{TEMPORARY_PREFIX}{name}" for name in ("1", "2"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, time.time() - 100))
    sweep(store, older_than_s=50)
    assert (old.exists(), new.exists()) == (False, True)
    assert store.get("teams/nlp/object") == b"whole"


class FirstAway(LocalStore):
    """A folder whose first sweep fails."""

    asked = 0

    def remove_partial(self, *, older_than_s: float) -> int:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("list uploads: 503")
        return super().remove_partial(older_than_s=older_than_s)


def test_a_store_that_is_away_is_asked_the_next_time(tmp_path: Path) -> None:
    half = tmp_path / f"{TEMPORARY_PREFIX}1"
    half.write_bytes(b"half")
    there: list[tuple[float, bool]] = []

    def wait(seconds: float) -> bool:
        there.append((seconds, half.exists()))
        return len(there) == 3

    keep_sweeping(FirstAway(tmp_path), older_than_s=-1, wait=wait)
    assert there == [(300, True), (21600, True), (21600, False)]
