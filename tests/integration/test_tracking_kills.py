"""Points that MLflow's clients log, while processes on their way are killed in turn.

Each is killed once; `python -m chaos --tracking 20` kills each one twenty times.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from chaos.tracking import VICTIMS, kill_each

pytestmark = pytest.mark.nightly


@pytest.mark.timeout(900)
def test_no_acknowledged_point_is_lost_or_doubled(tmp_path: Path) -> None:
    today = datetime.now(UTC).toordinal()
    found = kill_each(tmp_path, 1, today, print, VICTIMS)
    assert {victim: each.kills for victim, each in found.items()} == dict.fromkeys(VICTIMS, 1)
    assert all(each.acknowledged for each in found.values())
    assert [victim for victim, each in found.items() if each.wrong] == []
