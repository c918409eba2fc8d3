"""What uploads left behind goes when it is old, and a store that is away ends nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

from gangline_checkpoints.sweeping import sweep
from gangline_storage import LocalStore
from gangline_storage.keys import TEMPORARY_PREFIX
from gangsim.store import SimStore


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


def test_a_store_that_is_away_is_asked_the_next_time() -> None:
    store = SimStore(Random(1))
    store.away = True
    sweep(store, older_than_s=0)
