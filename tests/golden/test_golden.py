"""The log of every release folds to the state that was recorded with it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from gangline_bus.decision import Decision
from gangline_bus.snapshot import Snapshots, unpack
from golden.record import CODECS, KINDS, Held, bus_with, fold, formats, read_log, releases
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


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_a_snapshot_of_the_release_leads_to_the_fold_of_its_log(release: Path, name: str) -> None:
    """An upgrade continues from it, unless the state's version says that logs are folded again."""
    kind = KINDS[name]
    data = (release / f"{name}.snapshot").read_bytes()
    header, _ = unpack(data)
    decider = kind.decider()
    codec = kind.codec(decider.initial)
    bus, place = bus_with(kind, release / kind.file)

    folded = Snapshots(Held([data]), codec).restore(bus, decider, place)

    if not codec.reads(header.state, header.form):
        assert folded is None
        assert codec.version > header.state, FORM_CHANGED.format(service=name, release=release.name)
        return
    assert folded is not None, "it was passed over; the captured log says why"
    assert 0 < header.next_seq < folded.next_seq
    whole = kind.canonical(fold(kind, release / kind.file))
    assert kind.canonical(folded.state) == whole, (
        f"from a snapshot of {release.name}, {name} has another state than from its log. If the "
        "fold was wrong before and is right now, count its VERSION up and give no converter: "
        "then logs are folded again. Else let a converter give what the fold gives."
    )


FORM_CHANGED = """
The state of {service} has another form than that of {release}. Count VERSION up in its snapshot
module and give a converter from the version before, or none if only the log has what is new: see
'The format of a state' in docs/guides/upgrades.md. (Is {release} not released yet? Then record it
again: PYTHONPATH=tests python -m golden {release} --states)
"""


@pytest.mark.parametrize("service", CODECS)
def test_another_form_of_a_state_has_another_version(service: str) -> None:
    newest = max(RELEASES, key=lambda path: tuple(map(int, path.name.split("."))))
    released = json.loads((newest / "formats.json").read_text(encoding="utf-8"))[service]
    now = formats()[service]
    if now != released:
        message = FORM_CHANGED.format(service=service, release=newest.name)
        assert now["version"] > released["version"], message


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
        "gang.stopping",
        "gang.released",
        "job.resume.changed",
        "job.waiting",
        "node.cordoned",
        "node.uncordoned",
        "team.noted",
    }
