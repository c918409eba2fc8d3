"""Studies in virtual time with crashes: what holds at each event, and that each check can fail."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from gangline_bus.decision import Decision
from gangline_schemas.events.scheduling import GangReleased
from gangline_schemas.events.studies import (
    EndReason,
    PruneReason,
    StudyEnded,
    TrialCompleted,
    TrialFailed,
    TrialFailure,
    TrialJobRequested,
    TrialMeasured,
    TrialPromoted,
    TrialProposed,
    TrialPruned,
    TrialStarted,
    TrialWithdrawn,
)
from gangline_schemas.study_file import StudySpec
from gangline_schemas.study_space import Parameters
from gangline_studies.core import advance, measuring, suggesting, trial_jobs
from gangline_studies.core.policy import rungs
from gangline_studies.core.state import Phase
from gangline_studies.service.sampler import Sampler
from support.harnesses.study_world import Fate, StudyWorld

UNITS = 27
SEEDS = int(os.environ.get("GANGLINE_STUDY_SEEDS", "1"))
ENDS = (TrialCompleted, TrialFailed, TrialPruned, TrialWithdrawn)
STOPPING: dict[str, Any] = {
    "none": {"kind": "none"},
    "stop": {"kind": "asha", "min_steps": 1},
    "promote": {"kind": "asha", "min_steps": 1, "mode": "promote"},
    "hyperband": {"kind": "hyperband", "min_steps": 1, "max_steps": UNITS},
    "median": {"kind": "median"},
    "pbt": {"kind": "pbt", "interval_steps": 5},
}


def spec(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "name": "s",
        "team": "nlp",
        "objective": {"metric": "loss"},
        "space": {
            "x": {"type": "float", "low": -5, "high": 5},
            "y": {"type": "float", "low": 1e-3, "high": 10, "log": True},
        },
        "job": {"run": "x", "resources": {"gpus": 1}},
        "seed": 5,
        "limits": {"trials": 40, "parallel": 8, "failed": 40},
    }
    return StudySpec.model_validate({**fields, **changes})


def curve(parameters: Parameters) -> list[float | None]:
    x, y = float(parameters["x"] or 0), float(parameters["y"] or 0)
    return [(x - 1) ** 2 + abs(y - 1) + 20 / (unit + 1) for unit in range(UNITS)]


def rough(parameters: Parameters) -> Fate:
    """Programs that fail in all ways, each by its parameters."""
    source = random.Random(str(sorted(parameters.items())))
    values = curve(parameters)
    kind = source.choice(("", "", "", "exit", "memory", "nan"))
    if kind == "nan":
        values = [*values[:4], None, *values[5:]]
    failure = kind if kind in {"exit", "memory"} else ""
    units = source.randrange(1, UNITS) if failure else UNITS
    broken = frozenset(source.sample(range(1, UNITS), 2)) if source.random() < 0.3 else frozenset()
    return Fate(values[:units], failure, broken)


def watch(world: StudyWorld, _decisions: list[Decision]) -> None:
    """Looks at the simulated cluster after each input."""
    for study_id in world.state.active:
        limits = world.state.studies[study_id].spec.limits
        assert len(world.running) <= limits.parallel
        new = [name for name in world.queue if world.jobs[name].attempt == 0]
        of = [world.state.jobs[name] for name in new]
        wait = [job for job in of if not world.state.trials[job.study_id, job.number].stopping]
        assert len(wait) <= limits.ahead


def run(stopping: str = "none", seed: int = 0, crash: float = 0.0, **changes: Any) -> StudyWorld:
    program = changes.pop("program", lambda parameters: Fate(curve(parameters)))
    save_s = changes.pop("save_s", 0.0)
    gangs = changes.pop("gangs", 6)
    others_s = changes.pop("others_s", 0.0)
    world = StudyWorld(
        program, gangs=gangs, seed=seed, crash=crash, tick_s=30, save_s=save_s, others_s=others_s,
        sampler=changes.pop("asks", None),
    )  # fmt: skip
    world.after.append(watch)
    world.submit("s", spec(stopping=STOPPING[stopping], **changes))
    world.run()
    check_log(world)
    return world


def check_log(world: StudyWorld) -> None:
    """One proposal and one end of each trial; parameters of all its jobs are those proposed."""
    proposed = {each.number: each.parameters for each in world.events(TrialProposed)}
    assert len(proposed) == len(world.events(TrialProposed))
    assert sorted(proposed) == list(range(len(proposed)))
    ends = [each.number for kind in ENDS for each in world.events(kind)]
    assert sorted(ends) == sorted(proposed)
    for job in world.events(TrialJobRequested):
        held = {name: job.spec.hyperparameters[name] for name in proposed[job.number]}
        assert held == proposed[job.number]
    steps: dict[int, int] = {}
    for each in world.events(TrialMeasured):
        assert each.step > steps.get(each.number, -1)
        steps[each.number] = each.step
    assert len(world.events(StudyEnded)) == 1
    assert not world.state.jobs
    assert not world.state.trials


@pytest.mark.parametrize("stopping", STOPPING)
def test_all_promises_hold_with_crashes_at_any_event(stopping: str) -> None:
    for seed in range(SEEDS):
        limits = {"trials": 24, "parallel": 8, "failed": 24}
        world = run(stopping, seed=seed, crash=0.1, program=rough, limits=limits)
        calm = run(stopping, seed=seed, program=rough, limits=limits)
        assert world.crashes > 20
        ended = world.state.studies["s"]
        assert ended.ending is EndReason.TRIALS
        if stopping in {"none", "median"}:
            assert ended.proposed == calm.state.studies["s"].proposed == 24


def test_suggestions_survive_crashes_unchanged() -> None:
    """With one gang the order of results is fixed, so both runs ask the same questions."""
    limits = {"trials": 15, "parallel": 1}
    calm = run(gangs=1, limits=limits)
    shaken = run(gangs=1, limits=limits, crash=0.2, seed=3)
    assert shaken.crashes > 30
    assert calm.events(TrialProposed) == shaken.events(TrialProposed)


def test_a_replay_never_asks_the_sampler() -> None:
    world = run("stop")

    def never(key: str, effect: object) -> object:
        raise AssertionError("a replay asked for a suggestion")

    world.sampler = never
    world.take_over()
    world._ask()
    assert not world.asked


def test_hardware_failures_are_no_results() -> None:
    def shaken(parameters: Parameters) -> Fate:
        number = int(abs(float(parameters["x"] or 0)) * 1e6)
        broken = frozenset({2, 9, 20}) if number % 3 == 0 else frozenset()
        return Fate(curve(parameters), nodes_fail=broken)

    calm = run("none", gangs=1, limits={"trials": 30, "parallel": 1})
    world = run("none", gangs=1, limits={"trials": 30, "parallel": 1}, program=shaken)
    assert world.events(TrialProposed) == calm.events(TrialProposed)
    assert world.events(TrialCompleted) == calm.events(TrialCompleted)
    assert not world.events(TrialFailed)
    assert sum(len(gang.failed) for gang in world.jobs.values()) > 6
    assert world.state.studies["s"].best == calm.state.studies["s"].best


def test_the_budget_is_kept_but_for_one_rung() -> None:
    limits = {"trials": 40, "parallel": 6, "gpu_hours": 2.0}
    world = run("stop", limits=limits)
    ended = world.state.studies["s"]
    assert ended.ending is EndReason.GPU_HOURS
    rung = 6 * (world.unit_s + world.tick_s) / 3600
    assert 2.0 <= ended.gpu_seconds / 3600 <= 2.0 + rung
    assert any(each.reason is PruneReason.ENDED for each in world.events(TrialPruned))


def test_promotion_continues_from_a_committed_checkpoint() -> None:
    world = run("promote", save_s=150.0)
    promoted = world.events(TrialPromoted)
    assert promoted
    later = [each for each in world.events(TrialJobRequested) if each.part > 1]
    assert {each.number for each in later} == {each.number for each in promoted}
    assert all(each.spec.resume_from for each in later)
    ended = {trial.number: trial for trial in world.state.over["s"]}
    finished = [each for each in promoted if ended[each.number].phase is Phase.COMPLETED]
    assert finished
    trained = sum(trial.gpu_seconds for trial in ended.values())
    assert trained < 40 * UNITS * world.unit_s / 2


def short(parameters: Parameters) -> Fate:
    """A program of two units."""
    return Fate(curve(parameters)[:2])


def new_process(key: str, question: object) -> object:
    """Asks a sampler that has made no suggestion yet."""
    return Sampler()(key, question)


def test_cmaes_makes_the_same_suggestions_in_new_processes_and_after_crashes() -> None:
    fields = {"sampler": "cmaes", "limits": {"trials": 40, "parallel": 8}, "program": short}
    calm = run("none", **fields)
    crashed = run("none", crash=0.1, asks=new_process, **fields)
    assert crashed.crashes > 10
    assert crashed.events(TrialProposed) == calm.events(TrialProposed)
    by = [each.by for each in calm.events(TrialProposed)]
    assert by.count("cmaes") == len(by)


def crowded(**fields: Any) -> StudyWorld:
    """Four gangs, which other teams' jobs take for three minutes after each end."""
    return run("none", limits={"trials": 40, "parallel": 8}, gangs=4, others_s=180, **fields)


def test_a_waiting_trial_is_asked_for_again_when_results_came() -> None:
    world = crowded(sampler="tpe")
    withdrawn = {each.number for each in world.events(TrialWithdrawn)}
    proposed = {each.number: each for each in world.events(TrialProposed)}
    assert withdrawn
    assert {proposed[number].by for number in withdrawn} <= {"tpe"}
    started = [each for number, each in proposed.items() if number not in withdrawn]
    assert len(started) == 40
    assert not crowded(sampler="random").events(TrialWithdrawn)


def test_a_trial_that_got_the_gpus_of_the_last_result_is_not_withdrawn() -> None:
    world = run("none", limits={"trials": 40, "parallel": 8}, gangs=4, sampler="tpe")
    withdrawn = {each.number for each in world.events(TrialWithdrawn)}
    assert not withdrawn & {each.number for each in world.events(TrialStarted)}
    assert len({each.number for each in world.events(TrialProposed)} - withdrawn) == 40


def test_a_population_continues_from_its_best_members() -> None:
    world = run("pbt")
    replaced = [each for each in world.events(TrialPruned) if each.better is not None]
    assert replaced
    children = [each for each in world.events(TrialProposed) if each.parent is not None]
    assert [each.parent for each in children] == [each.better for each in replaced]
    jobs = {each.number: each for each in world.events(TrialJobRequested)}
    assert all(jobs[each.number].spec.resume_from for each in children)


def test_each_point_of_a_grid_is_tried_once() -> None:
    space = {
        "x": {"type": "int", "low": -2, "high": 2},
        "y": {"type": "choice", "values": [0.5, 1.0, 2.0]},
    }
    world = run("none", space=space)
    points = [tuple(each.parameters.values()) for each in world.events(TrialProposed)]
    assert len(set(points)) == len(points) == 15
    assert world.state.studies["s"].ending is EndReason.EXHAUSTED
    assert world.state.studies["s"].best_value == pytest.approx(20 / UNITS)


# Ablations: each check above finds the rule that was taken away.


def broken_room(state: Any, study_id: str) -> bool:
    return len(state.studies[study_id].live) < state.studies[study_id].spec.limits.parallel + 1


def unsaved(state: Any, study_id: str, _now: Any) -> Any:
    return _NEXT(state, study_id, None)


_NEXT = advance._next_promotion
_TAKE = trial_jobs._take


def failing_on_release(plan: Any, job: Any, trial: Any, event: Any, at: Any) -> None:
    """Takes a dead node for a bad trial."""
    _TAKE(plan, job, trial, event, at)
    if isinstance(event, GangReleased) and trial.since and trial.phase is Phase.RUNNING:
        trial_jobs._fail(plan, job, TrialFailure.FAILED, "a node failed")


def other_parameters(spec: StudySpec, study: str, number: int, given: Any, *more: Any) -> Any:
    return _JOB(spec, study, number, {**given, "x": 0.5}, *more)


_JOB = advance.job_of


@pytest.mark.parametrize(
    ("place", "name", "instead", "check"),
    [
        (suggesting, "room", broken_room,
         test_a_waiting_trial_is_asked_for_again_when_results_came),
        (advance, "_next_promotion", unsaved, test_promotion_continues_from_a_committed_checkpoint),
        (advance, "_withdraw", lambda *_: None,
         test_a_waiting_trial_is_asked_for_again_when_results_came),
        (trial_jobs, "_take", failing_on_release, test_hardware_failures_are_no_results),
        (advance, "_end_of", lambda *_: None, test_the_budget_is_kept_but_for_one_rung),
        (rungs, "promotable", lambda held, _: held,
         test_promotion_continues_from_a_committed_checkpoint),
        (advance, "job_of", other_parameters, test_a_replay_never_asks_the_sampler),
        (measuring, "prune", lambda *_: None, test_the_budget_is_kept_but_for_one_rung),
    ],
)  # fmt: skip
def test_an_ablation_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    place: Any,
    name: str,
    instead: Callable[..., Any],
    check: Callable[[], None],
) -> None:
    monkeypatch.setattr(place, name, instead)
    monkeypatch.setattr(
        StudyWorld, "run", lambda world, run=StudyWorld.run: run(world, most=40_000)
    )
    with pytest.raises((AssertionError, KeyError)):
        check()
