"""Checkpoints of versions: retained while the registry makes a version of them, then pinned."""

from __future__ import annotations

import pytest

from gangline_checkpoints.core.pins import REGISTRY
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.state import CheckpointState
from gangline_registry.core.model import Failed, Made, MakeVersion
from gangline_schemas.checkpoint_policy import Retention
from gangline_schemas.events.checkpoints import (
    CheckpointDeleted,
    CheckpointPinChanged,
    CheckpointPromoted,
    RegistrationNoted,
)
from gangline_schemas.events.model_requests import VersionRequested
from gangline_schemas.events.quota import PinAdmitted
from gangline_schemas.events.registry import VersionBegun, VersionRefused, VersionRegistered
from gangline_schemas.models import CheckpointOf
from support.builders.checkpoints import JOB, allocated, checkpoint_run, commit
from support.builders.registry import RegistryRun
from support.harnesses.decider_run import DeciderRun

MODEL = {"team": "nlp", "model": "summarizer"}
Run = DeciderRun[CheckpointState, Reports]


def running() -> Run:
    run = checkpoint_run()
    run.feed(allocated(keep=Retention(latest=1)))
    return run


def steps(run: Run) -> list[int]:
    return [kept.step for kept in run.state.jobs[JOB].kept]


def begun(number: int = 1, step: int = 10, attempt: int = 1) -> VersionBegun:
    place = CheckpointOf(job_id=JOB, attempt=attempt, step=step)
    return VersionBegun(**MODEL, registration=number, checkpoint=place, user="ben")


def registered(number: int = 1) -> VersionRegistered:
    return VersionRegistered(**MODEL, registration=number, version=number)


def refused(number: int = 1) -> VersionRefused:
    return VersionRefused(**MODEL, registration=number, reason="MLflow does not take it")


def test_the_checkpoint_of_a_version_is_retained_from_its_begin_and_then_pinned() -> None:
    run = running()
    commit(run, 10)
    noted = RegistrationNoted(registration=1, job_id=JOB, attempt=1, step=10, open=True)
    assert run.feed(begun()) == [noted]
    for step in (20, 30):
        commit(run, step)
    assert steps(run) == [10, 30], "MLflow is away meanwhile"
    pinned = CheckpointPinChanged(job_id=JOB, attempt=1, step=10, pinned=True, user=REGISTRY)
    assert run.feed(registered()) == [pinned, noted.model_copy(update={"open": False})]
    commit(run, 40)
    assert steps(run) == [10, 40]
    assert run.feed(begun()) == run.feed(registered()) == [], "both are known"
    run.take_over()


def test_a_refused_registration_leaves_no_pin() -> None:
    run = running()
    commit(run, 10)
    run.feed(begun())
    for step in (20, 30):
        commit(run, step)
    [ended, gone] = run.feed(refused())
    assert isinstance(ended, RegistrationNoted)
    assert isinstance(gone, CheckpointDeleted)
    assert steps(run) == [30]
    assert not run.state.registering
    run.take_over()


def test_a_refused_registration_takes_away_no_pin_of_others() -> None:
    run = running()
    commit(run, 10)
    run.feed(PinAdmitted(job_id=JOB, step=10, pinned=True, user="ada"))
    run.feed(begun(1))
    run.feed(refused(1))
    run.feed(PinAdmitted(job_id=JOB, step=10, pinned=False, user="ada"))
    run.feed(begun(2))
    run.feed(begun(3))
    run.feed(registered(2))
    run.feed(refused(3))
    for step in (20, 30):
        commit(run, step)
    assert steps(run) == [10, 30]


def test_a_user_may_unpin_the_checkpoint_of_a_version() -> None:
    run = running()
    commit(run, 10)
    run.feed(begun())
    run.feed(registered())
    commit(run, 20)
    unpinned, gone = run.feed(PinAdmitted(job_id=JOB, step=10, pinned=False, user="ada"))
    assert (unpinned.type, gone.type) == ("checkpoint.pin.changed", "checkpoint.deleted")
    assert run.feed(begun()) == [], "the registry's log is read again"


def test_a_version_of_files_or_of_a_checkpoint_that_is_gone_retains_nothing() -> None:
    run = running()
    commit(run, 10)
    assert run.feed(begun(1, step=5)) == []
    assert run.feed(begun(2).model_copy(update={"checkpoint": None})) == []
    assert run.feed(begun(3, attempt=2)) == []
    assert run.feed(registered(1)) == run.feed(refused(2)) == []


@pytest.mark.parametrize("made", [True, False])
def test_what_the_registry_decides_is_what_is_pinned(*, made: bool) -> None:
    run, registry = running(), RegistryRun()
    commit(run, 10)
    registry.feed(CheckpointPromoted(job_id=JOB, attempt=1, step=10, run="validate-it"))
    events = registry.feed(VersionRequested(**MODEL, job_id=JOB, user="ben"))
    (key,) = [key for key, one in registry.effects().items() if isinstance(one, MakeVersion)]
    result = Made(1) if made else Failed("it has no such model", final=True)
    for event in [*events, *registry.done(key, result)]:
        run.feed(event)
    assert [kept.pinned for kept in run.state.jobs[JOB].kept] == [made]
    assert not run.state.registering
