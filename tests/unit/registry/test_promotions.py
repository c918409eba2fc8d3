"""Promotions, overrides and rollbacks of protected aliases."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from functools import partial

import pytest

from gangline_registry.core import promoting
from gangline_registry.core.model import (
    Compare,
    CompareProfiles,
    Failed,
    Made,
    MakeVersion,
    Project,
    Projected,
)
from gangline_registry.service.executor import Executor
from gangline_registry.service.mlflow import MlflowRegistry
from gangline_schemas.events.checkpoints import CheckpointPromoted
from gangline_schemas.events.model_requests import ModelPromotionRequested, VersionRequested
from gangline_schemas.events.registry import (
    AliasesProjected,
    AliasMoved,
    AliasRepaired,
    PromotionJudged,
    RegistryDeferred,
    RegistryRefused,
    VersionRefused,
    VersionRegistered,
)
from gangline_schemas.models import Verdict
from support.builders.registry import ALIAS, MODEL, OLD, TEAM, RegistryRun, evaluation, gate


def moved(run: RegistryRun) -> list[tuple[int, int, str]]:
    return [(one.from_version, one.to_version, one.kind) for one in run.events(AliasMoved)]  # type: ignore[attr-defined]


def with_champion() -> RegistryRun:
    run = RegistryRun(gate())
    run.version(1, qa="first")
    run.promote(1)
    assert moved(run) == [(0, 1, "gate")]
    return run


def test_a_better_candidate_gets_the_alias_and_a_worse_one_does_not() -> None:
    run = with_champion()
    run.version(2, qa="second")
    assert run.promote(2)[-1].type == "promotion.begun"  # its comparison is missing
    run.compare(wins=80, losses=40)
    assert moved(run) == [(0, 1, "gate"), (1, 2, "gate")]
    run.version(3, qa="third")
    run.compare(wins=40, losses=80)
    run.promote(3)
    judged = run.events(PromotionJudged)[-1]
    assert judged.verdict is Verdict.FAIL  # type: ignore[attr-defined]
    assert run.pointer.version == 2
    run.take_over()
    assert run.pointer.before == (1,)
    keys = [one.checkpoint.commit_key for one in run.events(AliasMoved)]  # type: ignore[attr-defined]
    assert keys == ["job-1/100", "job-2/100"]


def test_missing_evidence_never_passes() -> None:
    run = with_champion()
    run.version(2)
    run.promote(2)
    assert run.events(PromotionJudged)[-1].verdict is Verdict.INCONCLUSIVE  # type: ignore[attr-defined]
    run.report(2, "qa", evaluation("few", items=50))
    run.compare(50, 0)
    run.promote(2)
    assert run.events(PromotionJudged)[-1].verdict is Verdict.INCONCLUSIVE  # type: ignore[attr-defined]
    assert run.pointer.version == 1


def test_a_comparison_that_does_not_come_is_inconclusive_after_ten_minutes() -> None:
    run = with_champion()
    run.version(2, qa="second")
    run.promote(2)
    run.tick(601)
    assert run.events(PromotionJudged)[-1].verdict is Verdict.INCONCLUSIVE  # type: ignore[attr-defined]


def test_a_tick_judges_some_of_the_late_promotions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promoting, "MOST_AT_ONCE", 2)
    run = with_champion()
    run.version(2, qa="second")
    for _ in range(3):
        run.promote(2)
    run.tick(601)
    assert [*run.state.promotions] == [4]
    run.tick()
    assert not run.state.promotions


def test_a_verdict_is_void_if_the_baseline_moved_meanwhile() -> None:
    run = with_champion()
    run.version(2, qa="second")
    run.version(3, qa="third")
    run.promote(2)
    run.promote(3)
    run.compare(wins=100, losses=10)
    verdicts = [one.verdict for one in run.events(PromotionJudged)]  # type: ignore[attr-defined]
    assert verdicts == [Verdict.PASS, Verdict.PASS, Verdict.VOID]
    assert len(moved(run)) == 2


def test_an_unexpected_version_refuses_the_promotion() -> None:
    run = with_champion()
    run.version(2, qa="second")
    refused = run.promote(2, expected=7)
    assert [one.type for one in refused] == ["model.request.refused"]
    assert "and not to 7" in refused[0].reason  # type: ignore[attr-defined]


def test_an_override_moves_and_names_person_and_reason() -> None:
    run = with_champion()
    run.version(2)
    run.promote(2, reason="the suite is broken")
    last = run.events(AliasMoved)[-1]
    assert (last.kind, last.by, last.reason) == (  # type: ignore[attr-defined]
        "override", "eve (asked by ben)", "the suite is broken",
    )  # fmt: skip
    assert run.events(PromotionJudged)[-1].verdict is Verdict.INCONCLUSIVE  # type: ignore[attr-defined]


def test_rollbacks_lead_back_step_by_step_and_need_no_store() -> None:
    run = with_champion()
    for number in (2, 3):
        run.version(number)
        run.promote(number, reason="test")
    run.project(Failed("MLflow is away"))
    assert run.pointer.before == (1, 2)
    run.roll_back(expected=3, reason="bad answers")
    assert (run.pointer.version, run.pointer.before) == (2, (1,))
    run.roll_back()
    assert (run.pointer.version, run.pointer.before) == (1, ())
    assert run.roll_back()[0].type == "model.request.refused"
    assert moved(run)[-2:] == [(3, 2, "rollback"), (2, 1, "rollback")]


def test_a_rollback_leads_only_to_an_earlier_version_of_the_alias() -> None:
    run = with_champion()
    for number in (2, 3, 4):
        run.version(number)
    run.promote(2, reason="test")
    run.promote(3, reason="test")
    assert "can go back to 2, 1" in run.roll_back(to=4)[0].reason  # type: ignore[attr-defined]
    run.roll_back(to=1)
    assert (run.pointer.version, run.pointer.before) == (1, ())


def test_only_promoted_checkpoints_are_registered() -> None:
    run = RegistryRun(gate())
    asked = VersionRequested(team=TEAM, model=MODEL, job_id="job-1", user="ben")
    assert "validated itself" in run.feed(asked)[0].reason  # type: ignore[attr-defined]


def asked_of_mlflow(run: RegistryRun) -> list[int | None]:
    """The versions that open registrations expect MLflow to have."""
    effects = run.effects().values()
    return [one.registration.version for one in effects if isinstance(one, MakeVersion)]


def test_a_checkpoint_is_one_version() -> None:
    run = RegistryRun(gate())
    run.version(1, qa="first")
    again = VersionRequested(team=TEAM, model=MODEL, job_id="job-1", user="ben")
    run.feed(again)
    assert asked_of_mlflow(run) == [1], "MLflow may have lost it"
    run.finish_registrations(1)
    assert run.events(VersionRegistered)[-1] == VersionRegistered(
        team=TEAM, model=MODEL, registration=2, version=1
    )
    assert run.state.versions[f"{TEAM}/{MODEL}/1"].evaluations


def test_a_checkpoint_whose_version_mlflow_has_lost_is_registered_as_a_new_one() -> None:
    """Its user deleted the version or the model in MLflow, and registers the checkpoint again."""
    run = RegistryRun()
    run.version(1)
    run.version(2)
    again = VersionRequested(team=TEAM, model=MODEL, job_id="job-2", user="ben")
    run.feed(again)
    run.finish_registrations(3)
    assert [one.version for one in run.events(VersionRegistered)] == [1, 2, 3]  # type: ignore[attr-defined]
    run.feed(again)
    assert asked_of_mlflow(run) == [3], "the newest one"
    run.finish_registrations(3)
    run.take_over()


def test_a_number_that_mlflow_gives_again_is_another_version() -> None:
    """Its user deleted the model there, which has no gate, and began again under its name."""
    run = RegistryRun()
    run.version(1, qa="of the first model")
    run.version(2)
    run.register("job-9", 1)
    one = run.state.versions[f"{TEAM}/{MODEL}/1"]
    assert one.checkpoint is not None
    assert (one.checkpoint.job_id, one.evaluations) == ("job-9", {})
    assert run.state.numbered == {f"{TEAM}/{MODEL}": (2, 1)}
    run.register("job-9", 1)
    assert run.events(VersionRegistered)[-1].replaces is False  # type: ignore[attr-defined]
    run.take_over()


def test_a_number_of_another_version_that_an_alias_needs_is_refused() -> None:
    """MLflow's database was lost: the champion's evidence must not become another version's."""
    run = with_champion()
    run.register("job-9", 1)
    (refused,) = run.events(VersionRefused)
    assert "counts the versions of summarizer from 1 again" in refused.reason  # type: ignore[attr-defined]
    champion = run.state.versions[f"{TEAM}/{MODEL}/1"]
    assert champion.checkpoint is not None
    assert champion.checkpoint.job_id == "job-1"
    assert champion.evaluations
    run.register("job-9", 2)
    assert f"{TEAM}/{MODEL}/2" in run.state.versions


@pytest.mark.parametrize("made", [True, False])
def test_a_checkpoint_whose_registration_is_repeated_meanwhile_is_one_version(
    *, made: bool
) -> None:
    """A client that had no answer in time asks again, while MLflow is slow or away."""
    run = RegistryRun()
    run.feed(CheckpointPromoted(job_id="job-1", attempt=1, step=100, run="job-1-p"))
    for user in ("ben", "ben", "eva"):
        run.feed(VersionRequested(team=TEAM, model=MODEL, job_id="job-1", user=user))
    run.feed(VersionRequested(team=TEAM, model="other", job_id="job-1", user="ben"))
    asked = {k: one for k, one in run.effects().items() if isinstance(one, MakeVersion)}
    assert [one.registration.model for one in asked.values()] == [MODEL, "other"]
    first, other = asked
    run.done(first, Made(1) if made else Failed("no", final=True))
    ends = run.events(VersionRegistered if made else VersionRefused)
    assert [one.registration for one in ends] == [1, 2, 3]  # type: ignore[attr-defined]
    run.done(other, Made(1))
    assert not run.state.registrations
    assert len(run.state.versions) == (2 if made else 1)
    run.take_over()


def test_the_same_request_twice_is_one() -> None:
    run = RegistryRun(gate())
    run.version(1, qa="first")
    asked = run.received(
        ModelPromotionRequested(team=TEAM, model=MODEL, alias=ALIAS, version=1, user="ben")
    )
    assert len(run.take(asked)) == 3
    assert run.take(asked) == []


def test_the_table_is_projected_and_repaired() -> None:
    run = with_champion()
    (effect,) = [one for one in run.effects().values() if isinstance(one, Project)]
    assert [(one.alias, one.version, one.keep) for one in effect.aliases] == [(ALIAS, 1, (1,))]
    run.project()
    assert run.state.projected == run.state.changes
    run.tick(30)
    repaired = run.project(Projected(repaired=((TEAM, MODEL, ALIAS, 7),)))
    assert repaired == [AliasRepaired(team=TEAM, model=MODEL, alias=ALIAS, found=7, version=1)]


def test_a_projection_is_tried_again_and_a_new_change_does_not_wait_for_it() -> None:
    run = with_champion()
    run.project(Failed("MLflow is away"))
    assert not any(isinstance(one, Project) for one in run.effects().values())
    run.tick(1)
    assert any(isinstance(one, Project) for one in run.effects().values())
    run.project(Failed("MLflow is away"))
    run.version(2)
    run.promote(2, reason="test")
    assert any(isinstance(one, Project) for one in run.effects().values())
    run.project(Projected(missing=("nlp/summarizer/2",)))
    assert run.state.missing == ("nlp/summarizer/2",)
    assert not run.state.deferred
    assert run.events(AliasesProjected)


def test_without_mlflow_the_log_says_so_once_in_each_process() -> None:
    run = with_champion()
    unset = MlflowRegistry(None)
    for _ in range(3):
        for key, one in run.effects().items():
            if isinstance(one, Project):
                run.done(key, unset.project(one))
        run.tick(3600)
    assert len(run.events(RegistryDeferred)) == 1
    run.take_over()
    run.tick(1)
    run.project()
    assert run.state.projected == run.state.changes


def test_comparisons_that_had_no_store_are_made_by_the_next_process() -> None:
    """An operator has set it meanwhile; else these two versions could never be compared."""
    run = with_champion()
    run.version(2, qa="second")
    execute = Executor(MlflowRegistry(None), None)
    for _ in range(3):
        for key, one in run.effects().items():
            if isinstance(one, Compare):
                run.done(key, execute(key, one))
        run.tick(3600)
    assert not run.state.versions[f"{TEAM}/{MODEL}/2"].comparisons
    (deferred,) = run.events(RegistryDeferred)
    assert "GANGLINE_STORE_URL" in deferred.reason  # type: ignore[attr-defined]
    run.take_over()
    run.tick(1)
    run.promote(2)
    run.compare(wins=80, losses=40)
    assert run.pointer.version == 2


GONE = Failed("an object is gone: registry/nlp/scores/a", final=True)


def given_up() -> RegistryRun:
    """The scores of a candidate and the champion could not be compared: an object was gone."""
    run = with_champion()
    run.version(2, qa="second")
    run.promote(2)
    (key,) = [key for key, one in run.effects().items() if isinstance(one, Compare)]
    run.done(key, GONE)
    assert not any(isinstance(one, Compare) for one in run.effects().values())
    return run


def test_a_comparison_whose_object_was_gone_is_made_when_it_is_asked_for_again() -> None:
    run = given_up()
    run.promote(2)
    run.compare(wins=80, losses=40)
    verdicts = [one.verdict for one in run.events(PromotionJudged)]  # type: ignore[attr-defined]
    assert verdicts == [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.PASS]
    assert run.pointer.version == 2
    run.take_over()


@pytest.mark.parametrize(("number", "text"), [(2, "second"), (1, "first")])
def test_a_comparison_whose_object_was_gone_is_made_when_the_scores_are_sent_again(
    number: int, text: str
) -> None:
    run = given_up()
    run.report(number, "qa", evaluation(text))
    run.compare(wins=80, losses=40)
    (comparison,) = run.state.versions[f"{TEAM}/{MODEL}/2"].comparisons.values()
    assert comparison.problem == ""
    run.take_over()


def test_profiles_whose_object_was_gone_are_compared_when_one_is_sent_again() -> None:
    run = RegistryRun(gate(training_data={}))
    run.version(1, snapshot=OLD, qa="first")
    run.promote(1)
    newest = "sales@xxh3-" + "2" * 32
    sent = {newest: 0.0, OLD: 1.0}  # and the days since they were made
    for snapshot in (OLD, newest):
        run.profiled(snapshot, sent[snapshot])
    for again, days in sent.items():
        (key,) = [key for key, one in run.effects().items() if isinstance(one, CompareProfiles)]
        run.done(key, GONE)
        assert not any(isinstance(one, CompareProfiles) for one in run.effects().values())
        run.profiled(again, days)
    assert any(isinstance(one, CompareProfiles) for one in run.effects().values())
    run.take_over()


def projects(run: RegistryRun) -> list[str]:
    return [key for key, one in run.effects().items() if isinstance(one, Project)]


def test_a_clock_that_was_ahead_and_is_put_back_holds_up_neither_mlflow_nor_verdicts() -> None:
    run = with_champion()
    run.now += timedelta(days=300)
    run.tick()
    run.project(Failed("MLflow is away"))
    run.version(2, qa="second")
    run.promote(2)
    assert not projects(run)
    run.now -= timedelta(days=300)
    run.tick()
    assert run.events(PromotionJudged)[-1].verdict is Verdict.INCONCLUSIVE  # type: ignore[attr-defined]
    assert len(projects(run)) == 1
    run.project()
    looked = projects(run)
    run.tick(30)
    assert projects(run) != looked


def test_a_process_that_began_by_a_clock_that_was_ahead_pauses_between_tries() -> None:
    run = with_champion()
    run.soft = run.decider.initial_soft()
    run.now += timedelta(days=300)
    run.tick()
    run.now -= timedelta(days=300)
    run.tick()
    run.project(Failed("MLflow is away"))
    assert not projects(run)


def test_two_promotions_race_and_one_wins() -> None:
    """Requests and comparisons in any order; `GANGLINE_RACES` is the number of races."""
    start = with_champion()
    start.version(2, qa="second")
    start.version(3, qa="third")
    begun, judged = len(start.events(AliasMoved)), len(start.events(PromotionJudged))
    choose = random.Random(27)
    for _ in range(int(os.environ.get("GANGLINE_RACES", "24"))):
        run = deepcopy(start)
        steps: list[Callable[[], object]] = [
            partial(run.promote, 2, expected=1),
            partial(run.promote, 3, expected=1),
            partial(run.compare_one, choose, 100, 10),
            partial(run.compare_one, choose, 100, 10),
        ]
        choose.shuffle(steps)
        for step in steps:
            step()
        run.tick(601)
        assert len(run.events(AliasMoved)) - begun == 1
        verdicts = [one.verdict for one in run.events(PromotionJudged)][judged:]  # type: ignore[attr-defined]
        assert verdicts.count(Verdict.PASS) == 1
        assert len(verdicts) + len(run.events(RegistryRefused)) == 2
