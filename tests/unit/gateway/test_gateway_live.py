"""The live model is a fold: whatever the order of topics, and bounded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import permutations

import pytest

from gangline_gateway import gang_heartbeats, present
from gangline_gateway.live import METRICS_OF_A_RUN, place_of
from gangline_gateway.live_model import JobDetails, LiveNode
from gangline_gateway.publish import SOURCE
from gangline_schemas.api.cluster import Node
from gangline_schemas.api.jobs import Ranks
from gangline_schemas.base import Event, FieldError
from gangline_schemas.events.checkpoints import CheckpointCommitted, CheckpointDeleted
from gangline_schemas.events.faults import (
    FailureCause,
    GangFailed,
    JobFlagged,
    NodeDistrusted,
    NodeFailed,
    NodeRecovered,
    WorkerStraggling,
)
from gangline_schemas.events.heartbeats import (
    GangStatus,
    GpuStatus,
    RankActivity,
    RankStatus,
    WorkerHeartbeat,
)
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.quota import (
    CancelAdmitted,
    JobAdmitted,
    JobRejected,
    RequestRefused,
)
from gangline_schemas.events.requests import JobSubmitted
from gangline_schemas.events.scheduling import (
    CheckpointRef,
    GangAllocated,
    GangReleased,
    JobQueued,
    JobStateChanged,
    JobWaiting,
    NodeAdmitted,
    NodeAssignment,
    NodeCordoned,
    NodeUncordoned,
    ReleaseReason,
    Rendezvous,
)
from gangline_schemas.events.workers import GpuInfo, NodeInfo, NodeUnfit
from gangline_schemas.job import JobSpec, JobState
from support.builders.read_model import NOW, ReadModel, fold

SPEC = JobSpec.model_validate(
    {
        "name": "train",
        "team": "nlp",
        "command": ["x"],
        "resources": {"gpus": 2},
        "hyperparameters": {"steps": 100},
    }
)
PENDING, RUNNING, SUCCEEDED = JobState.PENDING, JobState.RUNNING, JobState.SUCCEEDED


def node_info(incarnation: str = "i") -> NodeInfo:
    gpus = tuple(GpuInfo(index=index, model="h100", memory_gb=80) for index in range(2))
    return NodeInfo(
        node_id="n0", incarnation=incarnation, address="127.0.0.1", hostname="h", gpus=gpus,
        cpus=8, memory_gb=64, rendezvous_ports=(29500,),
    )  # fmt: skip


JOINED = NodeAdmitted(node=node_info())
ADMITTED = JobAdmitted(job_id="a", spec=SPEC, user="ada", submitted_at=NOW)
RELEASED = GangReleased(
    job_id="a", attempt=1, reason=ReleaseReason.RESTARTING, allocated_at=NOW, gpu_seconds=12.5
)


def moved(state: JobState, previous: JobState = PENDING, job_id: str = "a") -> JobStateChanged:
    return JobStateChanged(job_id=job_id, attempt=1, previous=previous, state=state)


def queued(job_id: str = "a", minutes: int = 0) -> JobQueued:
    at = NOW + timedelta(minutes=minutes)
    return JobQueued(job_id=job_id, spec=SPEC, user="ada", submitted_at=at)


def allocated(attempt: int = 1) -> GangAllocated:
    nodes = (
        NodeAssignment(
            node_id="n0", incarnation="i", address="127.0.0.1", gpus=(0, 1), first_rank=0
        ),
    )
    meeting = Rendezvous(address="127.0.0.1", port=1)
    return GangAllocated(
        job_id="a", attempt=attempt, team="nlp", world_size=2, nodes=nodes, rendezvous=meeting,
        spec=SPEC,
    )  # fmt: skip


def at_step(number: int, attempt: int = 1, **fields: object) -> RunProgress:
    return RunProgress.model_validate(
        {
            "run_id": "a", "team": "nlp", "attempt": attempt, "rank": 0, "step": number,
            "time_ms": 100 * number, "metrics": {"loss": float(number), "mfu": number - 1.0},
            "step_s": 0.1, **fields,
        }
    )  # fmt: skip


def committed(at_step: int) -> CheckpointCommitted:
    ref = CheckpointRef(job_id="a", attempt=1, step=at_step, world_size=2, commit_key="k")
    return CheckpointCommitted(job_id="a", checkpoint=ref, size_bytes=9, objects=2)


def details(model: ReadModel, job_id: str = "a") -> JobDetails:
    found = model.view().details(job_id)
    assert found is not None
    return found


def node_of(model: ReadModel) -> LiveNode:
    found = model.view().node("n0")
    assert found is not None
    return found


def shown(model: ReadModel) -> Node:
    return present.node(model.view(), node_of(model), None)


def test_a_job_has_the_same_state_in_whatever_order_its_topics_are_read() -> None:
    requests = [JobSubmitted(job_id="a", spec=SPEC, user="ada")]
    quota = [ADMITTED]
    scheduling = [JOINED, queued(), moved(PENDING), allocated(), moved(RUNNING)]
    others: list[Event] = [at_step(5), committed(5)]
    for order in permutations([requests, quota, scheduling, others]):
        model = fold([event for topic in order for event in topic])
        found = details(model)
        assert (found.job.state, found.job.admitted) == ("running", True)
        assert found.gang is not None
        assert (found.job.attempt, found.gang.attempt, found.gang.world_size) == (1, 1, 2)
        assert found.progress is not None
        assert found.progress.step == 5
        assert [row.step for row in found.checkpoints] == [5]
        assert model.view().used_gpus == {"nlp": 2}


def test_a_pending_job_says_why_it_waits_until_it_starts() -> None:
    reason = JobWaiting(job_id="a", code="capacity", message="needs 2 GPUs; 1 is free")
    model = fold([JOINED, queued(), moved(PENDING), reason])
    waiting = details(model).waiting
    assert waiting is not None
    assert (waiting.code, waiting.message) == ("capacity", "needs 2 GPUs; 1 is free")
    answer = present.explain(model.view(), details(model), None, NOW)
    assert (answer.code, answer.message) == ("capacity", "needs 2 GPUs; 1 is free")
    fold([allocated()], model)
    assert details(model).waiting is None


def test_an_ended_job_says_when_and_how_it_ended() -> None:
    model = fold([JOINED, queued(), allocated(), moved(RUNNING), moved(SUCCEEDED, RUNNING)])
    answer = present.explain(model.view(), details(model), None, NOW)
    assert (answer.code, answer.message) == ("succeeded", "every rank ended with exit code 0")
    assert answer.since == details(model).job.ended_at is not None


def test_a_restart_is_counted_and_its_first_failed_rank_is_shown() -> None:
    failed = GangFailed(
        job_id="a", attempt=1, cause=FailureCause.PROCESS, action="restart",
        message="rank 1 was killed by signal 9", first_rank=1, node_id="n0", signal=9,
        restarts_used=1, restarts_max=3, failed_at=NOW,
    )  # fmt: skip
    model = fold([JOINED, queued(), allocated(), failed, RELEASED, moved(PENDING), allocated(2)])
    answer = present.summary(details(model), NOW)
    assert (answer.attempt, answer.restarts, answer.gpu_seconds) == (2, 1, 12.5)
    assert answer.failure is not None
    assert (answer.failure.first_rank, answer.failure.signal) == (1, 9)


def test_progress_gives_the_newest_values_and_the_remaining_time() -> None:
    model = fold([JOINED, queued(), allocated(), moved(RUNNING), at_step(10), at_step(20)])
    answer = present.summary(details(model), NOW + timedelta(seconds=63))
    assert (answer.step, answer.loss, answer.mfu) == (20, 20.0, 19.0)
    assert answer.total_steps == 100
    assert (answer.gpus, answer.gpus_allocated) == (2, 2)
    assert answer.estimated_remaining_s == pytest.approx(80 * 0.1)
    assert answer.elapsed_s == pytest.approx(60)


def test_an_elastic_gang_is_shown_with_what_it_has() -> None:
    one = allocated().nodes[0].model_copy(update={"gpus": (0,)})
    less = allocated().model_copy(update={"world_size": 1, "nodes": (one,)})
    answer = present.summary(details(fold([JOINED, queued(), less])), NOW)
    assert (answer.gpus, answer.gpus_allocated) == (2, 1)
    waiting = present.summary(details(fold([queued()])), NOW)
    assert (waiting.gpus, waiting.gpus_allocated) == (2, 0)


def test_progress_never_falls_back() -> None:
    events = [at_step(30, attempt=2), at_step(50), at_step(29, attempt=2), at_step(30, attempt=2)]
    progress = details(fold([queued(), *events])).progress
    assert progress is not None
    assert (progress.attempt, progress.step) == (2, 30)
    assert progress.at == NOW + timedelta(seconds=4), "the same step, said again, has a new age"


def test_a_run_without_steps_is_stalled_only_while_its_attempt_runs() -> None:
    since = NOW - timedelta(minutes=3)
    stalled = at_step(7, tokens_per_s=9.0, data_wait_share=0.25, stalled_since=since)
    model = fold([JOINED, queued(), allocated(), moved(RUNNING), at_step(7), stalled])
    answer = present.summary(details(model), NOW)
    assert (answer.stalled_since, answer.step) == (since, 7)
    assert (answer.tokens_per_s, answer.data_wait_share) == (9.0, 0.25)
    assert answer.progress_at == NOW + timedelta(seconds=5)
    again = fold([RELEASED, moved(PENDING, RUNNING), allocated(2), moved(RUNNING)], model)
    assert present.summary(details(again), NOW).stalled_since is None, "of an earlier attempt"
    ended = fold([JOINED, queued(), allocated(), stalled, moved(SUCCEEDED, RUNNING)])
    assert present.summary(details(ended), NOW).stalled_since is None


def test_of_many_metrics_the_first_are_kept() -> None:
    many = {f"m{index}": 1.0 for index in range(METRICS_OF_A_RUN + 9)}
    progress = details(fold([queued(), at_step(1, metrics=many)])).progress
    assert progress is not None
    assert list(progress.metrics) == list(many)[:METRICS_OF_A_RUN]


def test_steps_that_another_team_reports_are_not_the_jobs() -> None:
    foreign = at_step(50, attempt=2, team="vision")
    model = fold([foreign, queued(), foreign])
    assert details(model).progress is None
    progress = details(fold([at_step(1), foreign], model)).progress
    assert progress is not None
    assert (progress.attempt, progress.step) == (1, 1)


@pytest.mark.parametrize("order", list(permutations(["queued", "own", "foreign"])))
def test_another_teams_report_hides_no_progress(order: Sequence[str]) -> None:
    """Also if progress is read before the job is, as at a start."""
    events = {"queued": queued(), "own": at_step(1), "foreign": at_step(50, team="vision")}
    progress = details(fold([events[name] for name in order])).progress
    assert progress is not None
    assert progress.step == 1


@pytest.mark.parametrize("given", [10**400, -1, 0, 2**60, float("inf"), "many", None])
def test_a_job_is_listed_whatever_its_hyperparameter_steps_is(given: object) -> None:
    spec = SPEC.model_copy(update={"hyperparameters": {"steps": given}})
    model = fold([queued().model_copy(update={"spec": spec})])
    assert present.summary(details(model), NOW).total_steps is None


def test_a_new_attempt_may_begin_at_an_earlier_step() -> None:
    progress = details(fold([queued(), at_step(54), at_step(42, attempt=2)])).progress
    assert progress is not None
    assert (progress.attempt, progress.step) == (2, 42)


def test_not_finite_metrics_never_reach_an_answer() -> None:
    report = at_step(1).model_copy(update={"metrics": {"loss": float("nan"), "lr": 0.1}})
    answer = present.job(details(fold([queued(), report])), NOW, gang_heartbeats.GangHeartbeats())
    assert (answer.loss, answer.metrics) == (None, {"lr": 0.1})


def test_the_last_checkpoint_is_the_newest_healthy_one() -> None:
    gone = CheckpointDeleted(job_id="a", attempt=1, step=20, reason="retention")
    model = fold([queued(), committed(10), committed(20), committed(10), gone])
    answer = present.summary(details(model), NOW)
    assert answer.last_checkpoint is not None
    assert answer.last_checkpoint.step == 10
    statuses = {row.step: row.status for row in details(model).checkpoints}
    assert statuses == {10: "committed", 20: "deleted"}


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


def test_a_node_shows_its_status_and_what_its_heartbeat_says() -> None:
    model = fold([JOINED, queued(), allocated()])
    beat = WorkerHeartbeat(
        node_id="n0", incarnation="i", sequence=1, sent_at=NOW, cpu_percent=12.0,
        gpus=(GpuStatus(index=0, utilization=80), GpuStatus(index=1, utilization=60)),
    )  # fmt: skip
    model.live.take_heartbeat("n0", NOW, beat.encode())
    answer = shown(model)
    assert (answer.status, answer.gpus_used, answer.jobs) == ("ready", 2, ["a"])
    assert (answer.last_heartbeat, answer.cpu_percent) == (NOW, 12.0)
    assert gang_heartbeats.of_gang(model.view(), details(model), NOW) == (70, None)
    assert present.node(model.view(), node_of(model), frozenset({"vision"})).jobs == []
    fold([NodeFailed(node_id="n0", incarnation="i", reason="silent")], model)
    assert node_of(model).status == "failed"
    fold([NodeRecovered(node_id="n0", incarnation="i", was="failed")], model)
    fold([NodeCordoned(node_id="n0", incarnation="i", reason="drain")], model)
    assert node_of(model).status == "cordoned"
    fold([NodeCordoned(node_id="n0", incarnation="i", reason="drain", move_jobs=True)], model)
    assert node_of(model).status == "draining"
    fold([NodeAdmitted(node=node_info("i2"))], model)
    assert node_of(model).status == "ready"
    assert shown(model).cpu_percent is None


def beat_of(attempt: int, *ranks: RankStatus) -> bytes:
    gang = GangStatus(job_id="a", attempt=attempt, ranks=ranks)
    return WorkerHeartbeat(
        node_id="n0", incarnation="i", sequence=1, sent_at=NOW, gangs=(gang,)
    ).encode()


def test_a_job_shows_what_its_ranks_do_and_who_got_on_the_longest_ago() -> None:
    model = fold([JOINED, queued(), allocated(), RELEASED, moved(PENDING), allocated(2)])
    trains = RankStatus(rank=0, pid=1, step=7, activity=RankActivity.TRAINING, quiet_s=3)
    waits = RankStatus(rank=1, pid=2, step=7, activity=RankActivity.WAITING, quiet_s=40)
    silent = RankStatus(rank=0, pid=1)
    later = NOW + timedelta(seconds=2)

    model.live.take_heartbeat("n0", NOW, beat_of(2, trains, waits))
    found = gang_heartbeats.of_gang(model.view(), details(model), later).ranks
    assert found is not None
    assert found.doing == {"training": 1, "waiting": 1}
    quietest = found.quietest
    assert quietest is not None
    assert (quietest.rank, quietest.node_id, quietest.quiet_s) == (1, "n0", 42)

    model.live.take_heartbeat("n0", NOW, beat_of(2, silent))
    found = gang_heartbeats.of_gang(model.view(), details(model), later).ranks
    assert found == Ranks(doing={"running": 1}, quietest=None)

    model.live.take_heartbeat("n0", NOW, beat_of(1, trains, waits))
    found = gang_heartbeats.of_gang(model.view(), details(model), later).ranks
    assert found is None, "an old attempt"


def test_a_node_shows_a_slow_rank_while_its_gang_runs() -> None:
    slow = WorkerStraggling(
        job_id="a", attempt=1, rank=1, node_id="n0", busy_s=0.8, usual_s=0.4, against="gang",
        relative=0.5, individual=1.0, host=0.75, message="rank 1 on n0 works 0.800 s a step",
        since=NOW, noted_at=NOW,
    )  # fmt: skip
    model = fold([JOINED, queued(), allocated(), slow])
    assert shown(model).straggler == slow.message
    fold([RELEASED, moved(PENDING), allocated(2)], model)
    assert shown(model).straggler == ""


def unfit(reason: str, incarnation: str = "i", after_s: float = 0.0) -> NodeUnfit:
    at = NOW + timedelta(seconds=after_s)
    return NodeUnfit(node=node_info(incarnation), reasons=(reason, "and more"), checked_at=at)


def test_a_node_that_fails_its_check_is_shown_until_it_joins() -> None:
    model = fold([unfit("its disk is bad")])
    answer = shown(model)
    assert (answer.status, answer.why) == ("unfit", "its disk is bad; and more")
    fold([JOINED], model, after_s=10)
    fold([unfit("its disk is bad")], model, after_s=11)  # it is read again
    answer = shown(model)
    assert (answer.status, answer.why) == ("ready", "")
    again = [
        unfit("its clock is off", "i2", after_s=20),
        NodeFailed(node_id="n0", incarnation="i", reason="silent"),
        NodeCordoned(node_id="n0", incarnation="i", reason="failed"),
    ]
    for events in (again, [JOINED]):  # in any order
        fold(events, model, after_s=10)
        assert (node_of(model).status, node_of(model).info.incarnation) == ("unfit", "i2")
    fold([NodeAdmitted(node=node_info("i2"))], model, after_s=30)
    assert node_of(model).status == "ready"


@pytest.mark.parametrize(
    ("reason", "why"), [("", "it failed 5 times"), ("GPU 0 reported Xid 79",) * 2]
)
def test_a_distrusted_node_says_why(reason: str, why: str) -> None:
    distrusted = NodeDistrusted(
        node_id="n0", incarnation="i", failures=5, jobs=2, since=NOW, distrusted_at=NOW,
        reason=reason,
    )  # fmt: skip
    cordoned = NodeCordoned(node_id="n0", incarnation="i", reason="drain")
    model = fold([JOINED, distrusted, cordoned])
    answer = shown(model)
    assert (answer.status, answer.why) == ("cordoned", why)
    fold([NodeUncordoned(node_id="n0", incarnation="i")], model)
    assert node_of(model).reasons == ""


@pytest.mark.parametrize(
    ("release", "agent"), [("0.1.0", "0.1.0"), (None, "of an unreported release")]
)
def test_an_outdated_node_says_what_to_upgrade(release: str | None, agent: str) -> None:
    info = node_info().model_copy(update={"release": release})
    outdated = NodeCordoned(
        node_id="n0", incarnation="i", reason="outdated", oldest_accepted="0.3.0"
    )
    model = fold([NodeAdmitted(node=info), outdated])
    why = f"its agent is {agent}, the oldest accepted is 0.3.0; upgrade the agent"
    answer = shown(model)
    assert (answer.status, answer.why) == ("outdated", why)
    fold([NodeCordoned(node_id="n0", incarnation="i", reason="drain", move_jobs=True)], model)
    answer = shown(model)
    assert (answer.status, answer.why) == ("draining", why)
    fold([NodeUncordoned(node_id="n0", incarnation="i")], model)
    assert node_of(model).status == "outdated", "the end of a drain does not upgrade its agent"
    assert node_of(model.restarted()).status == "outdated"
    fold([NodeAdmitted(node=info.model_copy(update={"release": "0.3.0"}))], model)
    answer = shown(model)
    assert (answer.status, answer.why) == ("ready", "")


def test_a_broken_heartbeat_is_no_heartbeat() -> None:
    model = fold([JOINED])
    model.live.take_heartbeat("n0", NOW, b"\xff not json")
    assert shown(model).cpu_percent is None


def test_a_job_that_trains_without_damaged_data_says_so() -> None:
    flags = [
        JobFlagged(
            job_id="a",
            attempt=1,
            rank=block,
            node_id="n0",
            snapshot="corpus@xxh3-0",
            shard="shard-000002.tok",
            block=block,
            reason="holds other bytes",
            flagged_at=NOW,
        )
        for block in (3, 4)
    ]
    model = fold([*flags, queued(), moved(RUNNING), flags[0]])
    found = model.view().details("a")
    assert found is not None
    shown = present.job(found, NOW, gang_heartbeats.GangHeartbeats()).review
    assert [(flag.shard, flag.block, flag.rank) for flag in shown] == [
        ("shard-000002.tok", 3, 3),
        ("shard-000002.tok", 4, 4),
    ]
    again = model.restarted().view().details("a")
    assert again is not None
    assert again.flags == found.flags


def test_lists_come_newest_first_whatever_order_jobs_became_known_in() -> None:
    model = fold([queued("b", 2), queued("a", 1), queued("d", 3), queued("c", 3)])
    assert [job.job_id for job in model.view().newest_first()] == ["d", "c", "b", "a"]
    older = model.view().newest_first(place_of(model.live.jobs["c"]))
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
