"""What stays of jobs that ended: a short line while it has checkpoints, then nothing."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gangline_checkpoints.core import archive
from gangline_checkpoints.core.model import Corrupt, Job, Kept, Removed, Scrubbed, StepId, Verified
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.snapshot import codec, fingerprint
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.checkpoint_policy import BestCheckpoint, Retention
from gangline_schemas.events.checkpoints import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointPinChanged,
    ObjectsDeleted,
    ScrubBegun,
)
from gangline_schemas.events.quota import PinAdmitted
from gangline_schemas.events.scheduling import ReleaseReason
from gangline_schemas.memory import REMEMBERED
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    commit,
    could_not_start,
    on_node,
    part,
    ref,
    released,
)
from support.harnesses.decider_run import DeciderRun

DAY_S = 24 * 3600.0
LINE_BYTES = 100


def end(
    run: DeciderRun[CheckpointState, Reports], job_id: str = JOB, *, other: str = "job-2"
) -> None:
    """The job ends, its late parts are not waited for any more, and something else happens."""
    run.feed(released(reason=ReleaseReason.SUCCEEDED, job_id=job_id))
    run.tick(700.0)
    run.feed(allocated(job_id=other))


def ended(*steps: int, keep: Retention | None = None) -> DeciderRun[CheckpointState, Reports]:
    run = checkpoint_run()
    run.feed(allocated(keep=keep))
    for step in steps:
        commit(run, step, metrics={"loss": 1.0 / step, "accuracy": 0.5})
    end(run)
    return run


def pin(step: int, *, pinned: bool = True) -> PinAdmitted:
    return PinAdmitted(job_id=JOB, step=step, pinned=pinned, user="ada", request_id="r")


def test_a_line_of_less_than_100_bytes_stays_of_a_job_with_kept_checkpoints() -> None:
    run = ended(100, 200, 300)
    assert JOB not in run.state.jobs
    assert list(run.state.archive) == [JOB]
    assert len(run.state.archive[JOB]) <= LINE_BYTES
    assert run.state.verified_at == {}
    found = run.state.find(JOB)
    assert found is not None
    assert [kept.step for kept in found.kept] == [100, 200, 300]


def test_the_state_does_not_grow_otherwise_with_jobs_that_ended() -> None:
    run = checkpoint_run()
    sizes: list[int] = []
    run.feed(allocated(job_id="last"))
    for number in range(40):
        job_id = f"train-{number:08d}"
        run.feed(allocated(job_id=job_id))
        run.feed(on_node(0, 1, job_id=job_id))
        commit(run, 20, job_id=job_id)
        end(run, job_id, other=f"last-{number}")
        run.feed(released(reason=ReleaseReason.CANCELLED, job_id=f"last-{number}"))
        sizes.append(sum(len(line) for line in codec().dump(codec().copy(run.state))))
    # the newest job that ended is still waited for; of each other a line and an id remain
    growth = [b - a for a, b in pairwise(sizes[10:])]
    assert max(growth) <= LINE_BYTES + 100
    assert sys.getsizeof(run.state.archive["train-00000000"]) <= LINE_BYTES + 33


def test_jobs_of_which_nothing_is_kept_are_forgotten_by_the_rule() -> None:
    run = ended()
    assert JOB in run.state.ended
    assert run.feed(part(0)) == []
    assert run.feed(allocated()) == []
    run.tick((REMEMBERED + timedelta(seconds=1)).total_seconds())
    run.feed(allocated(job_id="job-3"))
    assert JOB not in run.state.ended


def test_a_save_that_is_verified_long_after_its_job_ended_is_committed() -> None:
    """No other event came meanwhile, so the job is put away with this commit."""
    run = checkpoint_run()
    run.feed(allocated())
    commit(run, 10)
    for rank in (0, 1):
        run.feed(part(rank, 20))
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    run.now += timedelta(hours=1)
    events = run.done(f"verify:{JOB}:1:20:0", Verified(100, 5, 0.1))
    assert CheckpointCommitted in {type(event) for event in events}
    assert list(run.state.archive) == [JOB]
    found = run.state.find(JOB)
    assert found is not None
    assert [kept.step for kept in found.kept] == [10, 20]


def test_a_checkpoint_of_an_ended_job_can_be_pinned() -> None:
    run = ended(10, 20)
    assert run.feed(pin(20)) == [
        CheckpointPinChanged(job_id=JOB, attempt=1, step=20, pinned=True, user="ada")
    ]
    assert JOB in run.state.archive, "read, changed and written again"
    found = run.state.find(JOB)
    assert found is not None
    assert [kept.pinned for kept in found.kept] == [False, True]


def test_an_unpinned_checkpoint_of_an_ended_job_is_deleted() -> None:
    run = checkpoint_run()
    run.feed(allocated(keep=Retention(latest=1)))
    commit(run, 10)
    run.feed(pin(10))
    commit(run, 20)
    end(run)
    assert [type(event) for event in run.feed(pin(10, pinned=False))] == [
        CheckpointPinChanged,
        CheckpointDeleted,
    ]
    assert JOB in run.state.jobs, "there is something to do"
    [key] = run.effects()
    assert [type(event) for event in run.done(key, Removed(5))] == [ObjectsDeleted]
    assert JOB in run.state.archive
    run.take_over()
    assert JOB in run.state.archive


def test_a_late_part_of_an_archived_job_is_deleted() -> None:
    run = ended(20)
    [gone] = run.feed(part(0, 30))
    assert isinstance(gone, CheckpointAbandoned)
    [key] = run.effects()
    run.done(key, Removed(2))
    assert JOB in run.state.archive


def test_damage_to_an_archived_checkpoint_is_known_to_who_starts_from_it() -> None:
    run = ended(10, 20)
    run.feed(allocated(job_id="child", resume=ref(1, 20)))
    damaged = f"{ref(1, 20).commit_key.rpartition('/')[0]}/rank-00000.bin"
    [corrupted] = run.feed(could_not_start(damaged, job_id="child"))
    assert corrupted.type == "checkpoint.corrupted"
    found = run.state.find(JOB)
    assert found is not None
    assert [kept.healthy for kept in found.kept] == [True, False]


def test_archived_checkpoints_are_read_again_job_by_job_oldest_first() -> None:
    run = checkpoint_run()
    for job_id, steps in (("a", (1, 2)), ("b", (1, 2)), ("c", (1,))):
        run.feed(allocated(job_id=job_id))
        for step in steps:
            commit(run, step, job_id=job_id)
        end(run, job_id, other=f"after-{job_id}")
    run.now += timedelta(seconds=DAY_S)
    read: list[tuple[str, int]] = []
    for _ in range(7):
        if len(read) == 4:
            assert run.tick(20.0) == []
            run.now += timedelta(seconds=DAY_S)
        [begun] = [event for event in run.tick(20.0) if isinstance(event, ScrubBegun)]
        read.append((begun.job_id, begun.step))
        run.take_over()
        damaged = (begun.job_id, begun.step) == ("b", 1)
        outcome = Corrupt("k", "is missing") if damaged else Scrubbed(100, 0.5)
        run.done(f"scrub:{begun.job_id}:1:{begun.step}", outcome)
        for key in run.effects():
            run.done(key, Removed(5))
    # b was changed by the damage, so it was written again and comes after a
    assert read == [("a", 1), ("a", 2), ("b", 1), ("c", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_a_snapshot_has_the_archive() -> None:
    run = ended(10, 20)
    kept = codec()
    assert fingerprint(kept.load(kept.dump(kept.copy(run.state)))) == fingerprint(run.state)


places = st.builds(StepId, st.integers(1, 99), st.integers(0, 2**62))
kept_ones = st.builds(
    Kept,
    places,
    st.integers(1, 10_000),
    st.dictionaries(
        st.sampled_from(["loss", "x"]), st.floats(allow_nan=False, allow_infinity=False)
    ),
    healthy=st.booleans(),
    promoted=st.booleans(),
    pinned=st.booleans(),
    refers=st.lists(st.integers(0, 99), max_size=3).map(tuple),
)
keeps = st.sampled_from(
    [Retention(), Retention(latest=5, every=10, best=BestCheckpoint(metric="loss", mode="min"))]
)


@given(st.lists(kept_ones, min_size=1, max_size=4), keeps, st.none() | places)
def test_a_line_says_all_that_retention_looks_at(
    kept: list[Kept], keep: Retention, known: StepId | None
) -> None:
    verified_at = datetime(2026, 1, 1, 8, 30, tzinfo=UTC)
    job = Job(attempt=7, prefix="teams/nlp/x/job-1", keep=keep, known=known, kept=kept, final=True)
    found, found_at = archive.read(JOB, archive.written(JOB, job, verified_at))
    assert found_at == verified_at
    assert (found.attempt, found.prefix, found.keep, found.known, found.final) == (
        7,
        job.prefix,
        keep,
        known,
        True,
    )
    shown = {"loss"} if keep.best is not None else set()
    for before, after in zip(kept, found.kept, strict=True):
        assert after.metrics == {n: v for n, v in before.metrics.items() if n in shown}
        assert [
            after.id, after.world_size, after.healthy, after.promoted, after.pinned, after.refers
        ] == [
            before.id, before.world_size, before.healthy, before.promoted, before.pinned,
            before.refers,
        ]  # fmt: skip
