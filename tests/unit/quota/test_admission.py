"""Quota's admission: which jobs may run, and the reason of the others in one sentence."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import pytest

from gangline_bus.codec import Received
from gangline_bus.decision import Decision
from gangline_quota.core.decide import Quota
from gangline_quota.core.state import REJECTED_KEPT, State
from gangline_schemas.base import Event, FieldError
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.admin import NodeDrainRequested, TeamConfigureRequested
from gangline_schemas.events.checkpoints import CheckpointCommitted, PromotionRequested
from gangline_schemas.events.pipelines import StepJobRequested
from gangline_schemas.events.quota import (
    CancelAdmitted,
    DrainAdmitted,
    JobAdmitted,
    JobClosed,
    JobIdTaken,
    JobRejected,
    PinAdmitted,
    PriorityAdmitted,
    RequestRefused,
    RestoreAdmitted,
    TeamConfigured,
)
from gangline_schemas.events.requests import (
    CheckpointPinRequested,
    JobCancelRequested,
    JobPriorityRequested,
    JobRestoreRequested,
    JobSubmitted,
)
from gangline_schemas.events.scheduling import CheckpointRef, JobStateChanged
from gangline_schemas.events.studies import TrialJobRequested
from gangline_schemas.job import JobState
from gangline_schemas.memory import IDS_REMEMBERED, REMEMBERED
from support.builders.deciding import START, Drive, only, spec, team


@pytest.fixture
def quota() -> Drive[State]:
    drive = Drive(Quota())
    drive.give(TeamConfigureRequested(config=team("nlp", limit=64)))
    drive.give(TeamConfigureRequested(config=team("cv", limit=8, borrow=8)))
    return drive


def end(drive: Drive[State], job_id: str, state: JobState = JobState.SUCCEEDED) -> None:
    drive.give(JobStateChanged(job_id=job_id, attempt=1, previous=JobState.RUNNING, state=state))


def test_a_trial_in_the_place_of_a_withdrawn_one_is_admitted_with_its_age(
    quota: Drive[State],
) -> None:
    since = START - timedelta(hours=2)
    for number, waits_since in enumerate((since, None)):
        asked = TrialJobRequested(
            job_id=f"s-t{number}", spec=spec(), user="ada", study_id="s", number=number,
            waits_since=waits_since,
        )  # fmt: skip
        assert only(quota.give(asked), JobAdmitted).waits_since == waits_since


def test_admits_a_job_within_the_limits(quota: Drive[State]) -> None:
    decided = quota.give(JobSubmitted(job_id="a", spec=spec(gpus=64), user="ada"))

    admitted = only(decided, JobAdmitted)
    assert (admitted.job_id, admitted.user, admitted.submitted_at) == ("a", "ada", START)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"team": "ghosts"}, "team 'ghosts' is not known; known: cv, nlp"),
        ({"gpus": 96}, "would exceed quota: 96/64 GPUs of team nlp"),
        ({"team": "cv", "gpus": 17}, "would exceed quota: 17/16 GPUs of team cv"),
        ({"resume_from": "a"}, "resume_from is cyclic: job 'a' would resume from itself"),
        ({"resume_from": "b"}, "resume_from: team nlp has no run 'b'"),
        ({"resume_from": "of-cv"}, "resume_from: team nlp has no run 'of-cv'"),
        ({"resume_from": "bad"}, "resume_from: job 'bad' was rejected, so it has no checkpoint"),
    ],
)
def test_rejects_with_one_sentence(
    quota: Drive[State], fields: dict[str, object], reason: str
) -> None:
    quota.give(JobSubmitted(job_id="of-cv", spec=spec("cv")))
    quota.give(JobSubmitted(job_id="bad", spec=spec("nlp", gpus=99)))

    decided = quota.give(JobSubmitted(job_id="a", spec=spec(**fields)))  # type: ignore[arg-type]

    assert only(decided, JobRejected).reason == reason


def test_a_job_may_resume_from_a_run_of_its_team_that_ended(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    end(quota, "a")

    decided = quota.give(JobSubmitted(job_id="b", spec=spec(resume_from="a")))

    assert only(decided, JobAdmitted).job_id == "b"


def test_a_step_may_start_from_a_registered_checkpoint_of_a_forgotten_run(
    quota: Drive[State],
) -> None:
    start = CheckpointRef(job_id="a", attempt=1, step=9, world_size=1, commit_key="a/9")
    given = {"job_id": "b", "spec": spec(resume_from="a"), "run_id": "r", "step": "s", "tries": 1}
    decided = quota.give(StepJobRequested(**given, start=start))  # type: ignore[arg-type]
    assert only(decided, JobAdmitted).start == start


def test_the_same_submission_again_leads_to_nothing_while_the_job_lives(
    quota: Drive[State],
) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))

    assert quota.give(JobSubmitted(job_id="a", spec=spec())) == []


def test_the_same_submission_after_the_end_is_answered_with_how_it_ended(
    quota: Drive[State],
) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    end(quota, "a")

    refused = only(quota.give(JobSubmitted(job_id="a", spec=spec())), RequestRefused)

    assert (refused.request, refused.target) == (JobSubmitted.type, "a")
    assert refused.reason == "job 'a' was submitted before and has ended: succeeded"


def test_a_record_that_comes_twice_leads_to_nothing_whatever_became_of_the_job(
    quota: Drive[State],
) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()), ce_id="first")
    end(quota, "a")
    quota.give(JobSubmitted(job_id="b", spec=spec(gpus=999)), ce_id="second")
    quota.give(JobSubmitted(job_id="a", spec=spec(gpus=2)), ce_id="third")

    for job_id, gpus, ce_id in (("a", 1, "first"), ("b", 999, "second"), ("a", 2, "third")):
        assert quota.give(JobSubmitted(job_id=job_id, spec=spec(gpus=gpus)), ce_id=ce_id) == []


def test_an_id_is_free_again_only_when_every_other_service_has_forgotten_it(
    quota: Drive[State],
) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    end(quota, "a")
    for days, taken in ((REMEMBERED.days, True), (IDS_REMEMBERED.days + 1, False)):
        quota.now = START + timedelta(days=days)
        quota.give(JobSubmitted(job_id=f"other-{days}", spec=spec()))
        end(quota, f"other-{days}")
        answer = quota.give(JobSubmitted(job_id="a", spec=spec(gpus=2)))
        assert [type(event) for event in answer] == [RequestRefused if taken else JobAdmitted]


def committed(job_id: str, step: int = 10) -> CheckpointCommitted:
    point = CheckpointRef(job_id=job_id, attempt=1, step=step, world_size=1, commit_key="c")
    return CheckpointCommitted(job_id=job_id, checkpoint=point, size_bytes=1, objects=1)


@pytest.mark.parametrize("late", [False, True], ids=["while it ran", "after its end"])
def test_the_id_of_a_job_of_which_checkpoints_are_kept_is_never_free_again(
    quota: Drive[State], *, late: bool
) -> None:
    """Its objects would be overwritten, and its checkpoints would seem to be the new job's."""
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    for number in range(2):
        if late:
            end(quota, "a")
        events = quota.give(committed("a", number))
        assert [type(event) for event in events] == ([JobIdTaken] if number == 0 else [])
    end(quota, "a")
    quota.now = START + timedelta(days=400)
    quota.give(JobSubmitted(job_id="other", spec=spec()))
    end(quota, "other")
    assert list(quota.state.ended) == ["other"]

    again = JobSubmitted(job_id="a", spec=spec())
    refused = only(quota.give(again, ce_id="r1"), RequestRefused)
    assert refused.reason == (
        "job id 'a' is taken: checkpoints of a job that ended are kept under it; choose another id"
    )
    assert quota.give(again, ce_id="r1") == []
    only(quota.give(CheckpointPinRequested(job_id="a", step=1), ce_id="r2"), PinAdmitted)
    cancelled = only(quota.give(JobCancelRequested(job_id="a"), ce_id="r3"), RequestRefused)
    assert cancelled.reason.startswith("job 'a' has already ended: checkpoints")
    unreadable = quota.refuse("a")
    assert only(unreadable, RequestRefused).target == "a"


def test_rejected_jobs_never_push_an_ended_one_out_of_memory(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    end(quota, "a")
    for number in range(REJECTED_KEPT + 10):
        rejected = JobRejected(job_id=f"r{number}", reason="no", submitted_at=quota.now)
        quota.state = quota.decider.evolve(quota.state, Decision("r", rejected), quota.now)

    assert only(quota.give(JobSubmitted(job_id="a", spec=spec(gpus=2))), RequestRefused)
    assert len(quota.state.rejected) == REJECTED_KEPT


def test_the_diff_of_the_code_stays_in_the_submission_and_its_digest_goes_on(
    quota: Drive[State],
) -> None:
    diff = "--- a\n+++ b\n" + "+\u20ac" * 100_000
    submitted = JobSubmitted(job_id="a", spec=spec(code_diff=diff))

    admitted = only(quota.give(submitted), JobAdmitted)

    assert admitted.spec.code_diff is None
    assert admitted.spec.code_diff_digest == hashlib.sha256(diff.encode()).hexdigest()
    assert quota.give(submitted) == []
    assert quota.replayed() == quota.state
    other = JobSubmitted(job_id="a", spec=spec(code_diff=diff + "+"))
    assert "another spec" in only(quota.give(other), RequestRefused).reason


def test_a_team_has_only_so_many_jobs_that_have_not_ended(quota: Drive[State]) -> None:
    few = team("few", limit=8).model_copy(update={"job_limit": 2})
    quota.give(TeamConfigureRequested(config=few))
    for job_id in ("a", "b"):
        quota.give(JobSubmitted(job_id=job_id, spec=spec("few")))

    rejected = only(quota.give(JobSubmitted(job_id="c", spec=spec("few"))), JobRejected)

    assert rejected.reason == (
        "team few has 2 jobs that have not ended, and its job_limit is 2: submit again when some "
        "have ended, or raise job_limit"
    )
    end(quota, "a")
    assert only(quota.give(JobSubmitted(job_id="d", spec=spec("few"))), JobAdmitted)


def test_a_taken_id_with_another_spec_is_refused(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))

    refused = only(quota.give(JobSubmitted(job_id="a", spec=spec(gpus=2))), RequestRefused)

    assert refused.target == "a"
    assert "taken by a job with another spec" in refused.reason


def test_an_unreadable_submission_is_answered_under_its_subject(quota: Drive[State]) -> None:
    fields = [FieldError(field="spec.resources.gpus", message="must be at least 1")]

    rejected = only(quota.refuse("job-9", fields=fields), JobRejected)

    assert rejected.reason == ("the job spec is not valid: spec.resources.gpus: must be at least 1")
    assert rejected.errors == tuple(fields)
    assert quota.refuse("job-9", fields=fields) == []


@pytest.mark.parametrize(
    ("subject", "event_type"),
    [("", "job.submitted"), ("Not An Id", "job.submitted"), ("job-9", "job.cancel.requested")],
)
def test_what_cannot_be_answered_is_left_to_the_dlq(
    quota: Drive[State], subject: str, event_type: str
) -> None:
    assert quota.refuse(subject, event_type) == []


def test_an_unreadable_submission_never_rejects_a_job_that_runs(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))

    assert only(quota.refuse("a"), RequestRefused).target == "a"


def test_requests_about_an_active_job_are_forwarded_once(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    requests: list[tuple[Event, type[Event]]] = [
        (JobPriorityRequested(job_id="a", priority=5), PriorityAdmitted),
        (JobRestoreRequested(job_id="a", step=7), RestoreAdmitted),
        (NodeDrainRequested(node_id="n"), DrainAdmitted),
        (JobCancelRequested(job_id="a", user="ada"), CancelAdmitted),
    ]
    for number, (request, admitted) in enumerate(requests):
        assert only(quota.give(request, ce_id=f"r{number}"), admitted)
        assert quota.give(request, ce_id=f"r{number}") == []


def test_equal_ids_of_two_systems_are_two_requests(quota: Drive[State]) -> None:
    for job_id in ("a", "b"):
        quota.give(JobSubmitted(job_id=job_id, spec=spec()))
        cancel = JobCancelRequested(job_id=job_id, user="ada")
        admitted = only(quota.give(cancel, ce_id="1", source=f"/{job_id}"), CancelAdmitted)
        assert (admitted.job_id, admitted.request_id) == (job_id, "1")


def test_requests_about_others_are_refused_with_the_reason(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    end(quota, "a", JobState.FAILED)

    ended = only(quota.give(JobCancelRequested(job_id="a")), RequestRefused)
    unknown = only(quota.give(JobRestoreRequested(job_id="b", step=1)), RequestRefused)

    assert ended.reason == "job 'a' has already ended: failed"
    assert unknown.reason == "job 'b' is not known"


def test_a_pin_is_forwarded_once_also_of_a_job_that_has_ended(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    end(quota, "a")
    request = CheckpointPinRequested(job_id="a", step=7, attempt=2, pinned=False, user="ada")

    admitted = only(quota.give(request, ce_id="r1"), PinAdmitted)
    assert (admitted.job_id, admitted.step, admitted.attempt) == ("a", 7, 2)
    assert not admitted.pinned
    assert (admitted.user, admitted.request_id) == ("ada", "r1")
    assert quota.give(request, ce_id="r1") == []
    unknown = only(quota.give(CheckpointPinRequested(job_id="b", step=7)), RequestRefused)
    assert unknown.reason == "job 'b' is not known"


def test_a_run_that_is_to_validate_a_checkpoint_is_admitted_like_any_other(
    quota: Drive[State],
) -> None:
    asked = PromotionRequested(job_id="a", attempt=1, step=7, run="v", spec=spec(gpus=64))

    admitted = only(quota.give(asked), JobAdmitted)
    assert (admitted.job_id, admitted.spec, admitted.user) == ("v", asked.spec, "promotion")
    assert quota.give(asked) == []
    huge = asked.model_copy(update={"run": "w", "spec": spec(gpus=65)})
    assert only(quota.give(huge), JobRejected).job_id == "w"


def test_closing_a_job_is_noted_once(quota: Drive[State]) -> None:
    quota.give(JobSubmitted(job_id="a", spec=spec()))
    changed = JobStateChanged(
        job_id="a", attempt=0, previous=JobState.PENDING, state=JobState.CANCELLED
    )

    assert only(quota.give(changed), JobClosed).state is JobState.CANCELLED
    assert quota.give(changed) == []


def test_a_team_is_configured_only_when_it_differs(quota: Drive[State]) -> None:
    assert quota.give(TeamConfigureRequested(config=team("nlp", limit=64))) == []

    changed = only(quota.give(TeamConfigureRequested(config=team("nlp", limit=32))), TeamConfigured)
    assert changed.config.gpu_limit == 32


def test_the_file_read_again_does_not_undo_a_later_request(quota: Drive[State]) -> None:
    from_file = TeamConfigureRequested(config=team("ml", limit=8), user="teams-file")
    edited = TeamConfigureRequested(config=team("ml", limit=16), user="teams-file")
    quota.give(from_file)
    quota.give(TeamConfigureRequested(config=team("ml", limit=12), user="ada"))

    assert quota.give(from_file) == []
    assert only(quota.give(edited), TeamConfigured).config.gpu_limit == 16
    assert only(quota.give(from_file), TeamConfigured).config.gpu_limit == 8


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        (timedelta(0), timedelta(0)),
        (-timedelta(minutes=9), -timedelta(minutes=9)),
        (-timedelta(days=400), timedelta(0)),
        (timedelta(days=400), timedelta(0)),
    ],
)
def test_a_producers_clock_gives_its_job_no_place_in_the_queue(
    quota: Drive[State], said: timedelta, counts: timedelta
) -> None:
    submitted = JobSubmitted(job_id="a", spec=spec("nlp", 1), user="ada")
    envelope = Envelope("in", "/t", quota.now + said, "a", submitted)
    admitted = only(quota.take(Received(envelope, "t", 0, 99)), JobAdmitted)
    assert admitted.submitted_at == quota.now + counts
