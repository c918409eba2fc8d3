"""Points that MLflow's clients log, while each process on their way is killed in turn.

`python -m chaos --tracking 20` kills each one twenty times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("mlflow")

from chaos.tracking import VICTIMS, kill_each

KILLS = 1


@pytest.mark.timeout(900)
def test_no_acknowledged_point_is_lost_or_doubled(tmp_path: Path) -> None:
    found = kill_each(tmp_path, KILLS, 25, print)
    assert {victim: each.kills for victim, each in found.items()} == dict.fromkeys(VICTIMS, KILLS)
    assert all(each.acknowledged for each in found.values())
    assert [victim for victim, each in found.items() if each.wrong] == []
