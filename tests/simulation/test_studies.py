"""A study on the simulated platform: no trial is lost, doubled or changed, whatever crashes."""

from __future__ import annotations

import os

import pytest

from gangsim.draw import draw
from gangsim.parts import Parts
from gangsim.studies import StudyWorld, with_crashes

SEEDS = int(os.environ.get("GANGLINE_STUDY_SEEDS", "1")) * 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_study_ends_with_all_of_its_trials(seed: int) -> None:
    outcome = StudyWorld(with_crashes(draw(seed)), Parts()).run()
    assert outcome.violation == ""
    crashes = [count for name, count in outcome.counts if name.startswith("crash")]
    assert sum(crashes) > 2
