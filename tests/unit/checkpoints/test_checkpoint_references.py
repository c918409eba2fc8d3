"""Incremental checkpoints: what they refer to stays, and its damage is theirs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline_checkpoints.core import references
from gangline_checkpoints.core.model import (
    Corrupt,
    Delete,
    Removed,
    Scrub,
    Scrubbed,
    StepId,
    Verified,
)
from gangline_checkpoints.core.reports import Reports
from gangline_checkpoints.core.snapshot import codec, fingerprint
from gangline_checkpoints.core.state import CheckpointState
from gangline_schemas.checkpoint_policy import Incremental, Retention
from gangline_schemas.events.checkpoints import (
    AttemptNoted,
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointCorrupted,
)
from gangline_schemas.events.scheduling import ReleaseReason
from gangsim.checkpoint_log import log_violations
from support.builders.checkpoints import (
    JOB,
    allocated,
    checkpoint_run,
    commit,
    could_not_start,
    part,
    ref,
    released,
    restored,
    resumes,
)
from support.harnesses.decider_run import DeciderRun

Run = DeciderRun[CheckpointState, Reports]
ONE = Retention(latest=1)
STEP = 10


def running(keep: Retention = ONE) -> Run:
    run = checkpoint_run()
    run.feed(allocated(keep=keep, incremental=Incremental(full_every=4)))
    return run


def steps(run: Run) -> list[int]:
    return [kept.id.step for kept in run.state.jobs[JOB].kept]


def healthy(run: Run) -> list[int]:
    return [kept.id.step for kept in run.state.jobs[JOB].kept if kept.healthy]


def test_what_a_kept_one_refers_to_stays_until_it_is_needed_no_more() -> None:
    run = running()
    [noted] = run.events(AttemptNoted)
    assert isinstance(noted, AttemptNoted)
    assert noted.full_every == 4
    commit(run, 10)
    for step in (20, 30, 40, 50):
        commit(run, step, refers=(10,))
    assert steps(run) == [10, 30, 40, 50], "the latest, the attempt's newest three, what they need"
    run.feed(released())
    run.feed(allocated(2, keep=ONE, resume=ref(1, 50)))
    assert steps(run) == [10, 30, 40, 50]
    commit(run, 60, attempt=2)
    assert steps(run) == [60]


def test_the_end_of_a_job_keeps_what_its_last_one_needs() -> None:
    run = running()
    commit(run, 10)
    commit(run, 20, refers=(10,))
    commit(run, 30, refers=(10, 20))
    commit(run, 40, refers=(20,))
    run.feed(released(reason=ReleaseReason.SUCCEEDED))
    assert steps(run) == [10, 20, 40], "what is kept is whole"


@pytest.mark.parametrize("reason", [ReleaseReason.SUCCEEDED, ReleaseReason.PREEMPTED])
def test_the_last_save_of_a_gang_counts_though_what_it_refers_to_was_replaced(
    reason: ReleaseReason,
) -> None:
    """Its rank knew of step 10; 20 and 30 were committed before the gang had saved and left."""
    run = running()
    for step in (10, 20):
        commit(run, step)
    for step in (30, 40):
        for rank in (0, 1):
            run.feed(part(rank, step))
    run.feed(released(reason=reason))
    run.done(f"verify:{JOB}:1:30:0", Verified(1, 5, 0.0))
    run.feed(resumes(1, 30))
    run.done(f"verify:{JOB}:1:40:0", Verified(1, 5, 0.0, 2, (10,)))
    run.feed(resumes(1, 40))
    assert healthy(run)[-1] == 40
    left = [10, 40] if reason is ReleaseReason.SUCCEEDED else [10, 20, 30, 40]
    assert steps(run) == left, "the next attempt lets go of the rest"


def test_a_commit_says_what_was_written_and_what_it_refers_to() -> None:
    run = running()
    commit(run, 10)
    commit(run, 20, refers=(10,))
    first, second = run.events(CheckpointCommitted)
    assert isinstance(first, CheckpointCommitted)
    assert isinstance(second, CheckpointCommitted)
    assert (first.size_bytes, first.whole_bytes, first.refers) == (100, None, ())
    assert (second.size_bytes, second.whole_bytes, second.refers) == (100, 200, (10,))


@pytest.mark.parametrize("refers", [(5,), (10, 15)])
def test_one_that_refers_to_what_was_never_committed_does_not_count(refers: tuple[int, ...]):
    run = running()
    commit(run, 10)
    commit(run, 20, refers=refers)
    assert steps(run) == [10]
    [abandoned] = run.events(CheckpointAbandoned)
    assert isinstance(abandoned, CheckpointAbandoned)
    assert "which is not kept and sound" in abandoned.reason


def test_another_attempts_steps_are_not_referred_to() -> None:
    run = running()
    commit(run, 10)
    run.feed(released())
    run.feed(allocated(2, keep=ONE, resume=ref(1, 10), incremental=Incremental()))
    commit(run, 20, attempt=2, refers=(10,))
    assert steps(run) == [10]


def test_a_base_that_two_later_commits_replaced_still_counts() -> None:
    """A rank was informed of step 10 and writes 40; 20 and 30 are committed meanwhile."""
    run = running()
    for step in (10, 20, 30):
        commit(run, step)
    commit(run, 40, refers=(10,))
    assert steps(run) == [10, 20, 30, 40]


def scrub(run: Run, step: int, outcome: object) -> None:
    """Let time pass until this step is read again."""
    for _ in range(20):
        run.tick(90_000)
        [key] = [key for key in run.effects() if key.startswith("scrub")]
        if key == f"scrub:{JOB}:1:{step}":
            run.done(key, outcome)
            return
        run.done(key, Scrubbed(1, 0.0))
    raise AssertionError(f"step {step} is never read")


def test_damage_marks_all_that_refer_to_it_and_no_other() -> None:
    run = running(Retention(latest=9))
    commit(run, 10)
    commit(run, 20, refers=(10,))
    commit(run, 30)
    commit(run, 40, refers=(10, 30))
    commit(run, 50, refers=(30,))
    key = "teams/nlp/attempt-0001/step-0000000010/rank-00000.bin"
    scrub(run, 10, Corrupt(key, "holds other bytes"))
    said = [
        (event.step, event.key, event.reason)
        for event in run.events(CheckpointCorrupted)
        if isinstance(event, CheckpointCorrupted)
    ]
    because = "chunks of it lie in step 10: holds other bytes"
    assert said == [(10, key, "holds other bytes"), (20, key, because), (40, key, because)]
    assert healthy(run) == steps(run) == [30, 50], "those that are damaged are of no use"


def test_a_node_that_finds_it_damaged_marks_the_same() -> None:
    run = running(Retention(latest=9))
    commit(run, 10)
    commit(run, 20, refers=(10,))
    folder = f"teams/nlp/checkpoints/{JOB}/attempt-0001/step-0000000010"
    exited = could_not_start(f"{folder}/rank-00000.bin")
    run.feed(exited)
    assert healthy(run) == []
    assert run.feed(exited) == []


def test_nothing_new_refers_to_what_is_damaged() -> None:
    run = running()
    commit(run, 10)
    scrub(run, 10, Corrupt("k", "r"))
    commit(run, 20, refers=(10,))
    assert healthy(run) == []
    commit(run, 30)
    assert healthy(run) == steps(run) == [30]


def test_references_are_in_a_snapshot() -> None:
    run = running()
    commit(run, 10)
    commit(run, 20, refers=(10,))
    states = codec()
    found = states.load(b"".join(states.dump(states.copy(run.state))).splitlines(keepends=True))
    assert fingerprint(found) == fingerprint(run.state)
    assert found.jobs[JOB].kept[-1].refers == (10,)


class Training:
    """A job whose ranks refer to commits that they know of; its fold's own copy."""

    def __init__(self, keep: Retention) -> None:
        self.run = checkpoint_run()
        self.keep = keep
        self.attempt = 0
        self.step = 0
        self.needs: dict[StepId, frozenset[int]] = {}
        self.begin(None)

    def begin(self, _: object) -> None:
        """Another attempt, from the newest healthy checkpoint."""
        kept = self.run.state.jobs[JOB].kept if self.attempt else []
        start = [item.id for item in kept if item.healthy][-1:]
        if start:
            self.run.feed(resumes(*start[0]))
        if self.attempt:
            self.run.feed(released(self.attempt))
        self.attempt += 1
        resume = ref(*start[0]) if start else None
        incremental = Incremental(full_every=4)
        self.run.feed(
            allocated(self.attempt, keep=self.keep, resume=resume, incremental=incremental)
        )

    def save(self, choice: tuple[int, int, bool]) -> None:
        """Based on one of the newest, whose chunks are partly used; the scheduler may miss it."""
        behind, used, heard = choice
        self.step += STEP
        own = [
            item.id
            for item in self.run.state.jobs[JOB].kept
            if item.healthy and item.attempt == self.attempt
        ]
        base = own[-1 - behind] if behind < len(own) else None
        there = sorted({base.step, *self.needs[base]}) if base is not None else []
        refers = tuple(step for index, step in enumerate(there) if used >> index & 1)
        commit(self.run, self.step, attempt=self.attempt, heard=heard, refers=refers)
        self.needs[StepId(self.attempt, self.step)] = frozenset(refers)

    def save_stale(self, back: int) -> None:
        """A rank that missed it refers to what may be gone, or of another attempt."""
        refers = (max(STEP, self.step - back * STEP),)
        self.step += STEP
        commit(self.run, self.step, attempt=self.attempt, refers=refers)
        self.needs[StepId(self.attempt, self.step)] = frozenset(refers)

    def damage(self, number: int) -> None:
        """A read finds one damaged."""
        self.run.tick(90_000)
        for key, effect in self.run.effects().items():
            if isinstance(effect, Scrub):
                self.run.done(key, Corrupt("k", "r") if number else Scrubbed(1, 0.0))

    def go_back(self, number: int) -> None:
        """A user restores one, or the scheduler is late."""
        kept = self.run.state.jobs[JOB].kept
        if kept:
            point = kept[number % len(kept)].id
            self.run.feed((restored if number % 2 else resumes)(*point))

    def delete(self, _: object) -> None:
        """The objects go: none that a kept one needs."""
        for key, effect in self.run.effects().items():
            if isinstance(effect, Delete):
                kept = [item.id for item in self.run.state.jobs[JOB].kept]
                for item in kept:
                    needed = {StepId(item.attempt, step) for step in self.needs[item]}
                    assert effect.id not in needed, f"{item} needs {effect.id}, which is deleted"
                self.run.done(key, Removed(1))


CHOICES = st.tuples(st.integers(0, 3), st.integers(0, 15), st.booleans())
SAVES = st.tuples(st.just("save"), CHOICES)
ACTIONS = st.lists(
    st.one_of(
        *[SAVES] * 5,
        st.tuples(st.just("save_stale"), st.integers(0, 9)),
        st.tuples(st.just("damage"), st.integers(0, 1)),
        st.tuples(st.just("go_back"), st.integers(0, 5)),
        st.tuples(st.just("begin"), st.none()),
        st.tuples(st.just("delete"), st.none()),
    ),
    max_size=40,
)  # fmt: skip
KEEPS = st.sampled_from([ONE, Retention(latest=2), Retention(latest=1, every=40)])


def _train(actions: list[tuple[str, object]], keep: Retention) -> None:
    training = Training(keep)
    for name, choice in [*actions, ("delete", None)]:
        getattr(training, name)(choice)
        for job in training.run.state.jobs.values():
            assert references.violations(job) == []
    assert log_violations(decision.event for decision, _ in training.run.log) == []
    training.run.take_over()
    training.run.feed(released(training.attempt, ReleaseReason.SUCCEEDED))
    while any(isinstance(effect, Delete) for effect in training.run.effects().values()):
        training.delete(None)
    assert references.violations(training.run.state.jobs[JOB]) == []


@given(ACTIONS, KEEPS)
@settings(max_examples=100, deadline=None)
def test_no_kept_checkpoint_ever_needs_a_deleted_one(
    actions: list[tuple[str, object]], keep: Retention
) -> None:
    _train(actions, keep)


@pytest.mark.parametrize("safeguard", ["removable", "commit_problem"])
def test_without_either_safeguard_the_property_fails(
    monkeypatch: pytest.MonkeyPatch, safeguard: str
) -> None:
    """Retention that counts no references; commits that do not look at what they refer to."""
    without = {"removable": _all_of_the_surplus, "commit_problem": lambda *_: None}
    saves = [("save", (0, 15, True))] * 5
    actions = [*saves, ("begin", None), ("save_stale", 2), *saves]
    _train(actions, ONE)
    monkeypatch.setattr(references, safeguard, without[safeguard])
    with pytest.raises(AssertionError):
        _train(actions, ONE)


def _all_of_the_surplus(_job: object, surplus: list[StepId], **_over: bool) -> list[StepId]:
    return surplus
