"""The log of every release folds to the state that was recorded with it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from gangline_bus.decision import Decision
from golden.record import KINDS, fold, read_log, releases
from golden.scenario import Scenario

RELEASES = releases()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_log_folds_to_its_recorded_state(release: Path, name: str) -> None:
    kind = KINDS[name]
    recorded = json.loads((release / "recorded.json").read_text(encoding="utf-8"))[name]

    state = fold(kind, release / kind.file)

    form = kind.canonical(state, recorded["fields"])
    assert hashlib.sha256(form).hexdigest() == recorded["sha256"], (
        "the fold of a log that is out there has changed: a successor would see another past. "
        "Make the new behaviour depend on something that old events do not have."
    )


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_hash_sees_what_happens(release: Path) -> None:
    kind = KINDS["quota"]
    recorded = json.loads((release / "recorded.json").read_text(encoding="utf-8"))["quota"]
    log = list(read_log(release / kind.file))
    assert len(log) == recorded["events"]
    decider = kind.decider()
    state = decider.initial()
    hashes = set()
    for logged in log:
        state = decider.evolve(state, Decision(logged.subject, logged.event), logged.at)
        form = kind.canonical(state, recorded["fields"])
        hashes.add(hashlib.sha256(form).hexdigest())
    assert len(hashes) > 0.8 * len(log)


def test_the_scenario_goes_the_same_way_again() -> None:
    first, second = Scenario(3), Scenario(3)
    first.run(300)
    second.run(300)
    assert first.logs == second.logs


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_the_log_holds_every_kind_of_decision(release: Path) -> None:
    kinds = Counter(
        logged.event.type for kind in KINDS.values() for logged in read_log(release / kind.file)
    )
    assert kinds.keys() >= {
        "job.admitted",
        "job.rejected",
        "job.cancel.admitted",
        "job.restore.admitted",
        "team.configured",
        "usage.charged",
        "gang.allocated",
        "gang.preempting",
        "gang.released",
        "job.resume.changed",
        "job.waiting",
        "node.cordoned",
        "node.uncordoned",
        "team.noted",
    }
