"""The state forgets studies that ended, and the old rungs of populations."""

from __future__ import annotations

from datetime import datetime

from gangline_schemas.events.studies import TrialMeasured
from gangline_schemas.memory import forget_old
from gangline_schemas.study_file import Pbt
from gangline_studies.core.state import StudyState

MOST_ENDED_TRIALS = 100_000
"""If ended studies have more trials than this together, the oldest ones are forgotten early."""
MOST_ENDED_BYTES = 64 << 20
"""Of their files: so are they with more."""
RUNGS_KEPT, RUNGS_AT_ONCE = 1000, 256
"""Of a population the newest rungs are kept; older ones go when there are so many of them."""


def forget_studies(state: StudyState, at: datetime) -> None:
    """Forget studies that ended long ago, and the oldest if those that ended have many trials."""
    for study_id, _ended in forget_old(state.ended, lambda ended: ended, at):
        _forget_study(state, study_id)
    trials = sum(len(state.over[study_id]) for study_id in state.ended)
    size = sum(state.studies[study_id].size_bytes for study_id in state.ended)
    early = []
    for study_id in [*state.ended][:-1]:
        if trials <= MOST_ENDED_TRIALS and size <= MOST_ENDED_BYTES:
            break
        trials -= len(state.over[study_id])
        size -= state.studies[study_id].size_bytes
        early.append(study_id)
    for study_id in early:
        del state.ended[study_id]
        _forget_study(state, study_id)


def _forget_study(state: StudyState, study_id: str) -> None:
    del state.studies[study_id]
    del state.over[study_id]


def forget_rungs(state: StudyState, event: TrialMeasured) -> None:
    """A population may reach a rung with each report. Other rungs lie ever farther apart."""
    study = state.studies[event.study_id]
    if not event.rungs or not isinstance(study.spec.stopping, Pbt):
        return
    first = event.rungs[-1] - RUNGS_KEPT
    if first - study.rungs_from < RUNGS_AT_ONCE:
        return
    for key in [key for key in state.rungs if key[0] == event.study_id and key[2] < first]:
        del state.rungs[key]
    state.studies[event.study_id] = study._replace(rungs_from=first)
