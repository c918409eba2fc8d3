"""What the gateway's live model keeps, forgets and refuses: repetitions, requests, views."""

from __future__ import annotations

import pytest

from gangline_gateway.publish import SOURCE
from gangline_schemas.base import FieldError
from gangline_schemas.events.quota import CancelAdmitted, JobRejected, RequestRefused
from gangline_schemas.events.requests import JobSubmitted
from support.builders.live_job import (
    ADMITTED,
    JOINED,
    RUNNING,
    SPEC,
    SUCCEEDED,
    allocated,
    at_step,
    committed,
    details,
    moved,
    queued,
)
from support.builders.read_model import NOW, ReadModel, fold


def test_a_rejected_submission_keeps_its_reason_and_never_hides_an_admitted_job() -> None:
    error = FieldError(field="resources.gpus", message="must be at least 1")
    no = JobRejected(job_id="a", reason="not valid", errors=(error,), submitted_at=NOW)
    found = details(fold([no])).job
    assert (found.state, found.reason, found.errors) == ("rejected", "not valid", (error,))
    assert details(fold([queued(), no])).job.state == "pending"


def test_ended_jobs_are_forgotten_oldest_first_and_active_ones_never() -> None:
    model = ReadModel(ended_kept=3)
    for index in range(10):
        name = f"j{index}"
        fold([queued(name, index), moved(SUCCEEDED, RUNNING, name)], model)
        fold([queued(f"active-{index}", index)], model)
    ended = [job.job_id for job in model.view().newest_first() if job.ended]
    assert ended == ["j9", "j8", "j7"]
    assert len(model.view().active) == 10
    assert model.view().details("j0") is None


def test_an_ended_job_leaves_nothing_behind() -> None:
    model = ReadModel(ended_kept=0)
    fold([at_step(1), committed(1), queued(), moved(SUCCEEDED, RUNNING)], model)
    fold([queued()], model)
    assert (details(model).progress, details(model).checkpoints) == (None, ())


@pytest.mark.parametrize("refusal_first", [False, True])
def test_a_repeated_submission_of_a_forgotten_job_is_not_shown_as_waiting(
    *, refusal_first: bool
) -> None:
    again = JobSubmitted(job_id="a", spec=SPEC)
    no = RequestRefused(request="job.submitted", target="a", reason="has ended: succeeded")
    model = fold([no, again] if refusal_first else [again, no])
    assert model.view().details("a") is None
    assert model.view().active == []


def test_a_refused_repetition_hides_no_job_that_was_admitted() -> None:
    no = RequestRefused(request="job.submitted", target="a", reason="taken")
    assert details(fold([queued(), no])).job.state == "pending"


def test_requests_are_answered_by_their_id() -> None:
    no = RequestRefused(request="job.cancel.requested", target="x", reason="gone", request_id="r2")
    model = fold([ADMITTED, CancelAdmitted(job_id="a", user="u", request_id="r1"), no])
    assert model.live.outcomes["r1"].refused is None
    assert model.live.outcomes["r2"].refused == "gone"
    assert model.view().cancelled("a")


def test_an_answer_to_somebody_else_s_request_of_the_same_id_is_no_answer() -> None:
    other = CancelAdmitted(job_id="a", user="u", request_id="r1", request_source="/portal")
    model = fold([ADMITTED, other])
    assert model.live.outcomes.get("r1") is None
    model = fold([ADMITTED, other.model_copy(update={"request_source": SOURCE})])
    assert model.live.outcomes.get("r1") is not None


def test_lists_come_newest_first_whatever_order_jobs_became_known_in() -> None:
    model = fold([queued("b", 2), queued("a", 1), queued("d", 3), queued("c", 3)])
    assert [job.job_id for job in model.view().newest_first()] == ["d", "c", "b", "a"]
    older = model.view().newest_first(model.live.jobs["c"].place)
    assert [job.job_id for job in older] == ["b", "a"]
    again = model.restarted()
    assert [job.job_id for job in again.view().newest_first()] == ["d", "c", "b", "a"]
    submitted = JobSubmitted(job_id="e", spec=SPEC, user="ada")  # at NOW, admitted later
    late = fold([submitted, queued("e", 5)], model)
    assert [job.job_id for job in late.view().newest_first()] == ["e", "d", "c", "b", "a"]


def test_a_view_does_not_change_while_the_model_goes_on() -> None:
    model = fold([queued("a"), queued("b", 1)])
    view = model.view()
    assert view.running == frozenset()
    more = [JOINED, allocated(), moved(RUNNING), queued("c", 2), moved(SUCCEEDED, RUNNING)]
    fold(more, model)
    assert [job.job_id for job in view.newest_first()] == ["b", "a"]
    assert view.jobs["a"].state == "pending"
    assert view.used_gpus == {}
    assert len(view.active) == 2
    assert model.view().jobs["a"].ended
