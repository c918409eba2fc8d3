"""The state forgets evidence about former champions, removed gates and earlier comparisons."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, ValuesView
from typing import Any

import pytest

from gangline_bus.decision import Decision, EffectDone, Tick
from gangline_registry.core import comparing, forgetting, requests
from gangline_registry.core.lookup import promoted
from gangline_registry.core.model import (
    Compare,
    CompareProfiles,
    Failed,
    Profiled,
    ProfilesCompared,
)
from gangline_registry.core.snapshot import codec
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import CheckpointDeleted, CheckpointPromoted
from gangline_schemas.events.model_requests import (
    GateRemovalRequested,
    GateRequested,
    ModelPromotionRequested,
    SnapshotProfiled,
)
from gangline_schemas.events.registry import (
    EvaluationCompared,
    GateSet,
    ProfileNoted,
    RegistryRefused,
)
from gangline_schemas.memory import REMEMBERED
from gangline_schemas.models import Override
from support.builders.registry import ALIAS, MODEL, OLD, TEAM, RegistryRun, gate, profile

SALES, VISITS = "sales@xxh3-" + "2" * 32, "visits@xxh3-" + "3" * 32


def watched() -> RegistryRun:
    """A champion whose data were compared with those of two data sets."""
    run = RegistryRun(gate(training_data={"datasets": ["sales", "visits"], "max_age_days": 30}))
    run.profiled(OLD, days_old=31)
    run.version(1, snapshot=OLD, qa="first")
    run.promote(1)
    for snapshot in (SALES, VISITS):
        run.profiled(snapshot)
        compare_profiles(run)
    run.tick()
    assert {one.snapshot for one in run.state.data.values()} == {SALES, VISITS}
    assert run.state.aged == {f"{TEAM}/{MODEL}/{ALIAS}": 1}
    return run


def compare_profiles(run: RegistryRun) -> None:
    for key, one in run.effects().items():
        if isinstance(one, CompareProfiles):
            run.done(key, ProfilesCompared(()))


def test_judgements_about_the_data_of_former_champions_are_forgotten() -> None:
    run = watched()
    run.version(2, snapshot=SALES)
    run.promote(2, reason="test")
    compare_profiles(run)
    assert {one.version for one in run.state.data.values()} == {2}


def test_a_removed_gate_leaves_nothing_about_its_aliases() -> None:
    run = watched()
    run.feed(GateRemovalRequested(team=TEAM, model=MODEL, user="ana"))
    assert (run.state.aliases, run.state.data, run.state.aged) == ({}, {}, {})


def test_failures_of_comparisons_that_nobody_wants_any_more_are_forgotten() -> None:
    run = RegistryRun(gate())
    run.version(1, qa="first")
    run.promote(1)
    run.version(2, qa="second")
    (key,) = [key for key, one in run.effects().items() if isinstance(one, Compare)]
    run.done(key, Failed("the store is away"))
    assert len(run.state.deferred) == 1
    run.promote(2, reason="test")
    assert not run.state.deferred


def test_without_mlflow_one_failure_is_remembered_however_often_aliases_move() -> None:
    run = RegistryRun(gate())
    for number in range(1, 4):
        run.version(number)
        run.promote(number, reason="test")
        run.project(Failed("there is none", until_restart=True))
    assert [*run.state.deferred] == [f"project:{run.state.changes}"]


def test_versions_of_models_without_a_gate_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "FREE_VERSIONS_KEPT", 3)
    run = RegistryRun()
    for number in range(1, 6):
        run.version(number)
    assert [one.version for one in run.state.versions.values()] == [3, 4, 5]
    assert run.state.numbered == {f"{TEAM}/{MODEL}": (3, 4, 5)}


class NotScanned(dict[str, Any]):
    """Values that must not be passed over one by one."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all were looked at")

    def values(self) -> ValuesView[Any]:
        raise AssertionError("all were looked at")

    def items(self) -> ItemsView[str, Any]:
        raise AssertionError("all were looked at")


class NotLookedAt(dict[str, Any]):
    """Of these values only one may be looked at."""

    def __init__(self, given: dict[str, Any], but: str) -> None:
        super().__init__(given)
        self._but = but

    def get(self, key: str, default: Any = None) -> Any:
        assert key == self._but
        return super().get(key, default)


def test_a_new_version_is_compared_without_a_look_at_those_of_other_models() -> None:
    run = RegistryRun(gate())
    run.version(1, qa="first")
    run.promote(1)
    run.version(2, qa="second")
    asked = [one for one in run.effects().values() if isinstance(one, Compare)]
    run.state.versions = NotScanned(run.state.versions)
    run.soft = run.decider.initial_soft()
    run.soft = run.decider.observe(run.state, run.soft, Tick(), run.now)
    assert [one for one in run.effects().values() if isinstance(one, Compare)] == asked
    forgetting.forget_versions(run.state, TEAM, MODEL)


def test_the_newest_checkpoint_of_a_job_is_found_without_a_look_at_those_of_other_jobs() -> None:
    run = RegistryRun()
    for job, step in (("a", 5), ("b", 9), ("a", 20), ("a", 10)):
        run.feed(promotion(job, step))
    run.feed(CheckpointDeleted(job_id="b", attempt=1, step=9, reason="test"))
    run.state.checkpoints = NotScanned(run.state.checkpoints)
    newest = promoted(run.state, "a", None)
    assert newest is not None
    assert newest.step == 20
    assert promoted(run.state, "b", None) is None
    assert promoted(run.state, "c", None) is None


def test_the_steps_of_a_job_are_forgotten_with_its_checkpoints_and_kept_by_a_snapshot() -> None:
    run = RegistryRun()
    for step in (5, 20, 10, 20):
        run.feed(promotion("a", step))
    run.feed(CheckpointDeleted(job_id="a", attempt=1, step=20, reason="test"))
    newest = promoted(run.state, "a", None)
    assert newest is not None
    assert newest.step == 10
    held = codec()
    loaded = held.load(held.dump(held.copy(run.state)))
    assert (loaded.checkpoints, loaded.steps) == (run.state.checkpoints, run.state.steps)
    run.tick(REMEMBERED.total_seconds() + 1)
    run.feed(promotion("b", 1))
    assert [*run.state.steps] == ["b"]
    assert promoted(run.state, "a", None) is None


def promotion(job_id: str, step: int) -> CheckpointPromoted:
    return CheckpointPromoted(job_id=job_id, attempt=1, step=step, run=f"{job_id}-run")


def test_a_gate_beyond_the_most_aliases_of_all_teams_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLflow's table is written in one request, and pipelines know as many."""
    monkeypatch.setattr(requests, "MOST_ALIASES", 3)
    run = RegistryRun(gate(aliases=["champion", "stable"]))

    def asked(model: str, *aliases: str) -> Event:
        given = gate(model=model, aliases=aliases)
        (event,) = run.feed(GateRequested(config=given, user="anna"))
        return event

    assert isinstance(asked("other", "champion"), GateSet)
    refused = asked("third", "champion")
    assert isinstance(refused, RegistryRefused)
    assert refused.reason.startswith("gates of all teams protect 3 aliases already, of 3;")
    assert isinstance(asked("other", "champion", "stable"), RegistryRefused)
    assert isinstance(asked("other", "stable"), GateSet), "it has one alias as before"
    run.feed(GateRemovalRequested(team=TEAM, model=MODEL, user="ana"))
    assert isinstance(asked("third", "champion"), GateSet)
    run.take_over()


def test_a_profile_leaves_the_versions_that_wait_for_comparisons_alone() -> None:
    run = RegistryRun(gate(training_data={}))
    run.profiled(OLD)
    run.version(1, snapshot=OLD, qa="first")
    run.promote(1)
    for number in range(2, 5):
        run.version(number, qa=f"of {number}")
    snapshot = "sales@xxh3-" + "4" * 32
    noted = ProfileNoted(team=TEAM, snapshot=snapshot, profile=profile(), user="ben")
    run.state.profiles[f"{TEAM}/{snapshot}"] = Profiled(TEAM, snapshot, profile(), run.now)
    run.state.versions = NotLookedAt(run.state.versions, but=f"{TEAM}/{MODEL}/1")
    run.soft = run.decider.observe(run.state, run.soft, Decision(TEAM, noted), run.now)
    wanted = [type(one) for one in run.effects().values()]
    assert wanted.count(Compare) == 3
    assert wanted.count(CompareProfiles) == 1


def test_a_result_is_found_without_a_look_at_all_that_is_wanted() -> None:
    run = RegistryRun(gate())
    run.version(1, qa="first")
    run.promote(1)
    run.version(2, qa="second")
    (key,) = [key for key, one in run.effects().items() if isinstance(one, Compare)]
    of_scores = {name: NotScanned(held) for name, held in run.soft.scores.items()}
    run.soft.scores = NotScanned(of_scores)
    done = EffectDone(key, Failed("an object is gone", final=True))
    (compared,) = run.decider.decide(run.state, run.soft, done, run.now)
    assert isinstance(compared.event, EvaluationCompared)


def test_aliases_of_one_version_ask_for_each_comparison_once() -> None:
    run = RegistryRun(gate(aliases=["champion", "stable", "live"]))
    run.version(1, qa="first")
    for alias in ("champion", "stable", "live"):
        run.feed(
            ModelPromotionRequested(
                team=TEAM, model=MODEL, version=1, alias=alias, user="ana",
                override=Override(person="ana", reason="test"),
            )
        )  # fmt: skip
    run.version(2, qa="second")
    found = [*comparing.of_model(run.state, TEAM, MODEL)]
    assert [(one.version, one.baseline_version) for one in found] == [(2, 1)]


def test_a_rollback_leads_back_fifty_moves() -> None:
    run = RegistryRun(gate())
    for number in range(1, 60):
        run.version(number)
        run.promote(number, reason="test")
    assert run.pointer.before == tuple(range(9, 59))


def test_profiles_are_bounded_by_team_and_those_of_champions_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forgetting, "PROFILES_KEPT", 2)
    run = watched()
    run.feed(SnapshotProfiled(team="vision", snapshot=SALES, profile=profile()))
    for digit in "4567":
        run.profiled("sales@xxh3-" + digit * 32)
    kept = [(one.team, one.snapshot[-1]) for one in run.state.profiles.values()]
    assert kept == [(TEAM, "1"), ("vision", "2"), (TEAM, "6"), (TEAM, "7")]


def test_a_process_looks_at_all_profiles_once() -> None:
    """From then on the newest one of each data set is known."""
    run = watched()
    run.state.profiles = NotScanned(run.state.profiles)
    snapshot = "sales@xxh3-" + "4" * 32
    noted = ProfileNoted(team=TEAM, snapshot=snapshot, profile=profile(), user="ben")
    run.state.profiles[f"{TEAM}/{snapshot}"] = Profiled(TEAM, snapshot, profile(), run.now)
    run.soft = run.decider.observe(run.state, run.soft, Decision(TEAM, noted), run.now)
    (wanted,) = [one for one in run.effects().values() if isinstance(one, CompareProfiles)]
    assert wanted.snapshot.snapshot == snapshot


def test_a_profile_of_older_data_that_comes_late_or_twice_is_not_the_newest() -> None:
    """Else its judgement would take the place of that of newer data, and end an alert about it."""
    run = watched()
    newest, older = ("sales@xxh3-" + digit * 32 for digit in "45")
    run.profiled(newest)
    compare_profiles(run)
    for snapshot, days_old in ((older, 2), (SALES, 5), (newest, 0)):
        run.profiled(snapshot, days_old=days_old)
        assert not [one for one in run.effects().values() if isinstance(one, CompareProfiles)]
    run.take_over()
    run.tick()
    assert not [one for one in run.effects().values() if isinstance(one, CompareProfiles)]
    assert {one.snapshot for one in run.state.data.values()} == {newest, VISITS}


def test_a_profile_that_says_it_is_of_the_future_is_as_new_as_its_arrival() -> None:
    run = watched()
    first, later = ("sales@xxh3-" + digit * 32 for digit in "45")
    run.profiled(first, days_old=-1000)
    compare_profiles(run)
    run.tick(60)
    run.profiled(later, days_old=1)
    assert not [one for one in run.effects().values() if isinstance(one, CompareProfiles)]
    run.tick(60)
    run.profiled(later, days_old=-1)
    (wanted,) = [one for one in run.effects().values() if isinstance(one, CompareProfiles)]
    assert wanted.snapshot.snapshot == later
