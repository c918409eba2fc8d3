"""Points that MLflow's clients log, while processes on their way are killed in turn.

`make test` kills one of them, another each day; nightly tests kill all.
`python -m chaos --tracking 20` kills each one twenty times.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from chaos.tracking import VICTIMS, kill_each

DRAWN = 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [DRAWN, pytest.param(len(VICTIMS), marks=pytest.mark.nightly)])
def test_no_acknowledged_point_is_lost_or_doubled(tmp_path: Path, count: int) -> None:
    today = datetime.now(UTC).toordinal()
    victims = random.Random(today).sample(VICTIMS, count)
    found = kill_each(tmp_path, 1, today, print, victims)
    assert {victim: each.kills for victim, each in found.items()} == dict.fromkeys(victims, 1)
    assert all(each.acknowledged for each in found.values())
    assert [victim for victim, each in found.items() if each.wrong] == []
