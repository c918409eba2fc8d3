"""The agent's decisions, as given / when / then on its pure core."""

from __future__ import annotations

import pytest

from gangline_bus.codec import Received
from gangline_bus.decision import Tick
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.faults import CheckpointRequested
from gangline_schemas.events.heartbeats import RankActivity, RankStatus, Trouble, TroubleKind
from gangline_schemas.events.scheduling import CheckpointIntervalChanged, ReleaseReason
from gangline_schemas.events.steps import WorkerStep
from gangline_schemas.events.workers import (
    CheckpointShardLost,
    CheckpointShardWritten,
    DataBlockDamaged,
    ExitReason,
    NodeJoined,
    SampleRange,
    WorkerExited,
    WorkerStarted,
)
from gangline_schemas.rank_protocol import (
    Control,
    DataDamaged,
    Doing,
    Hello,
    LeaveOutSamples,
    Report,
    Troubled,
)
from gangline_worker.agent.decide.effects import (
    CheckShard,
    CloseGang,
    KillRank,
    Note,
    OpenStore,
    Prepare,
    Publish,
    SendControl,
    SendHeartbeat,
    Spawn,
    Upload,
)
from gangline_worker.agent.decide.inputs import (
    NoSoundCopy,
    Prepared,
    PrepareFailed,
    RankExited,
    RankMessage,
    RankSpawned,
    SpawnFailed,
    StoreFailed,
    StoreOpened,
    UploadFailed,
)
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.decide.rank_messages import DAMAGE_LIMIT
from support.builders import gangs
from support.builders.agent_core import (
    NODE,
    START,
    Node,
    allocation,
    begun_anew,
    checked,
    kinds,
    published,
    ready,
    released,
    written,
)


@pytest.fixture
def node() -> Node:
    return Node()


def test_it_joins_and_sends_a_heartbeat_each_interval(node: Node):
    assert published(node.first, NodeJoined)[0].node == NODE
    assert isinstance(node.first[-1], SendHeartbeat)
    assert node.do(Tick()) == []
    node.time_s += 1.0
    (beat,) = node.do(Tick())
    assert isinstance(beat, SendHeartbeat)
    assert beat.heartbeat.sequence == 2


def test_a_gang_starts_once_it_is_prepared_and_its_store_is_open(node: Node):
    assert kinds(node.do(allocation())) == [Prepare]
    gang = GangKey("job", 1)
    assert node.do(Prepared(gang)) == [OpenStore(gang, gangs.ADDRESS, gangs.PORT)]
    assert node.do(StoreOpened(gang)) == [
        Spawn(RankKey(gang, 0), 0),
        Spawn(RankKey(gang, 1), 1),
    ]
    (started,) = published(node.do(RankSpawned(RankKey(gang, 1), 77)), WorkerStarted)
    assert (started.rank, started.pid, started.incarnation) == (1, 77, "boot")


def test_a_node_without_rank_0_opens_no_store(node: Node):
    node.do(allocation(first_rank=2))
    assert kinds(node.do(Prepared(GangKey("job", 1)))) == [Spawn, Spawn]


@pytest.mark.parametrize("other", [{"node_id": "node-9"}, {"incarnation": "earlier"}])
def test_what_names_another_node_or_incarnation_starts_nothing(node: Node, other: dict[str, str]):
    assert node.do(allocation(**other)) == []


def test_an_allocation_that_comes_twice_or_late_starts_nothing(node: Node):
    node.do(allocation(attempt=2))
    assert node.do(allocation(attempt=2)) == []
    assert node.do(allocation(attempt=1)) == []
    node.do(released(attempt=2))
    assert node.do(allocation(attempt=2)) == []


def test_exits_say_what_the_agent_knows(node: Node):
    ranks = node.running()
    (done,) = published(node.do(RankExited(ranks[0], code=0)), WorkerExited)
    assert (done.reason, done.exit_code) == (ExitReason.FINISHED, 0)
    out = node.do(RankExited(ranks[1], signal=9, out_of_memory=True, last_words="no memory"))
    (failed,) = published(out, WorkerExited)
    assert (failed.reason, failed.signal) == (ExitReason.FAILED, 9)
    assert failed.out_of_memory
    assert failed.message == "no memory"
    assert node.do(RankExited(ranks[1], code=0)) == []


@pytest.mark.parametrize(("code", "named"), [(65, "teams/nlp/x.bin"), (0, None)])
def test_a_failure_names_the_object_of_which_its_rank_found_no_sound_copy(
    code: int, named: str | None
) -> None:
    node = Node()
    rank, other = node.running()
    assert node.do(NoSoundCopy(rank, "teams/nlp/x.bin")) == []
    exits = published(node.do(RankExited(rank, code=code), RankExited(other, code=1)), WorkerExited)
    assert [event.damaged_object for event in exits] == [named, None]


def test_the_store_stays_open_until_the_gang_is_released(node: Node):
    ranks = node.running()
    assert CloseGang not in kinds(node.do(*(RankExited(rank, code=0) for rank in ranks)))
    out = node.do(released(reason=ReleaseReason.SUCCEEDED))
    assert out == [CloseGang(GangKey("job", 1), final=True)]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PrepareFailed(GangKey("job", 1), user_fault=True, message="no secret X"), 78),
        (PrepareFailed(GangKey("job", 1), user_fault=False, message="the store is away"), None),
        (StoreFailed(GangKey("job", 1), message="port taken"), None),
    ],
)
def test_a_launch_that_fails_is_reported_for_each_rank(
    node: Node, failure: PrepareFailed | StoreFailed, code: int | None
):
    node.do(allocation())
    exits = published(node.do(failure), WorkerExited)
    assert {item.reason for item in exits} == {ExitReason.LAUNCH_FAILED}
    assert [(item.rank, item.exit_code) for item in exits] == [(0, code), (1, code)]
    assert exits[0].message == failure.message
    gang = GangKey("job", 1)
    assert Spawn not in kinds(node.do(Prepared(gang), StoreOpened(gang)))


def test_a_damaged_checkpoint_is_named_with_its_object(node: Node):
    node.do(allocation())
    failed = PrepareFailed(
        GangKey("job", 1), user_fault=False, message="m", damaged_object="teams/nlp/x/rank-0.bin"
    )
    exits = published(node.do(failed), WorkerExited)
    assert {item.damaged_object for item in exits} == {"teams/nlp/x/rank-0.bin"}


def test_a_process_that_the_system_refuses_is_a_failed_launch(node: Node):
    gang = GangKey("job", 1)
    node.do(allocation(gpus=(0,)), Prepared(gang), StoreOpened(gang))
    (exited,) = published(node.do(SpawnFailed(RankKey(gang, 0), "no room")), WorkerExited)
    assert (exited.reason, exited.exit_code) == (ExitReason.LAUNCH_FAILED, None)


def test_what_comes_too_late_for_a_gang_is_cleaned_up(node: Node):
    gang = GangKey("job", 1)
    node.do(allocation(), released())
    assert node.do(Prepared(gang)) == [CloseGang(gang, final=False)]
    assert node.do(StoreOpened(gang)) == [CloseGang(gang, final=False)]


def test_steps_are_published_and_remembered(node: Node):
    (rank,) = node.running(gpus=(0,))
    report = Report(step=(6, 7), time_ms=(1, 2), metrics={"loss": (0.5, 0.4)})
    (steps,) = published(node.do(RankMessage(rank, report)), WorkerStep)
    assert (steps.run_id, steps.team, steps.step) == ("job", "nlp", (6, 7))
    node.time_s += 1.0
    (beat,) = node.do(Tick())
    assert isinstance(beat, SendHeartbeat)
    assert beat.heartbeat.gangs[0].ranks[0].step == 7
    (exited,) = published(node.do(RankExited(rank, code=1)), WorkerExited)
    assert exited.last_step == 7


def test_equal_reports_get_ids_of_their_own(node: Node):
    (rank,) = node.running(gpus=(0,))
    report = RankMessage(rank, Report(step=(1,), time_ms=(1,), metrics={}))
    first, second = node.do(report, report)
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert first.identity != second.identity


def test_a_damaged_block_of_data_is_published_and_no_flood_of_them(node: Node):
    rank, _ = node.running()

    def said(block: int) -> DataDamaged:
        return DataDamaged(snapshot="corpus@xxh3-0", shard="a.tok", block=block, reason="other")

    [published] = node.do(RankMessage(rank, said(7)))
    assert isinstance(published, Publish)
    assert published.event == DataBlockDamaged(
        job_id="job",
        attempt=1,
        rank=rank.rank,
        node_id="node-0",
        snapshot="corpus@xxh3-0",
        shard="a.tok",
        block=7,
        reason="other",
    )
    more = [node.do(RankMessage(rank, said(block))) for block in range(DAMAGE_LIMIT)]
    assert [len(effects) for effects in more] == [1] * (DAMAGE_LIMIT - 1) + [0]


def test_a_rank_that_ends_says_what_the_next_attempt_goes_without(node: Node):
    rank, other = node.running()
    samples = (SampleRange(first=16, count=8),)
    assert node.do(RankMessage(rank, LeaveOutSamples(left_out=samples))) == []
    exits = published(node.do(RankExited(rank, code=1), RankExited(other, signal=9)), WorkerExited)
    assert [exited.left_out for exited in exits] == [samples, ()]


def test_a_shard_is_uploaded_once_and_announced(node: Node):
    (rank,) = node.running(gpus=(0,))
    assert kinds(node.do(ready(rank), ready(rank))) == [CheckShard]
    assert kinds(node.do(checked(rank))) == [Publish, Upload]
    assert len(published(node.do(written(rank)), CheckpointShardWritten)) == 1
    assert node.do(written(rank)) == []


def test_what_is_in_the_store_is_not_written_over(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(ready(rank), checked(rank), written(rank))
    assert kinds(node.do(ready(rank))) == [Note]
    assert kinds(node.do(ready(rank, 4))) == [Note]
    assert kinds(node.do(ready(rank, 6))) == [CheckShard]


def test_a_shard_of_another_rank_or_world_is_refused(node: Node):
    (rank,) = node.running(gpus=(0,))
    other = ready(RankKey(rank.gang, 1)).message
    assert CheckShard not in kinds(node.do(RankMessage(rank, other)))
    assert CheckShard not in kinds(node.do(ready(rank, world_size=8)))


@pytest.mark.parametrize("ended", [True, False])
def test_an_orderly_exit_is_reported_after_its_uploads(node: Node, ended: bool):
    (rank,) = node.running(gpus=(0,))
    node.do(ready(rank))
    assert published(node.do(RankExited(rank, code=0)), WorkerExited) == []
    outcome = written(rank) if ended else UploadFailed(rank, 5, "the store is full")
    out = node.do(outcome)
    expected = [CheckpointShardWritten if ended else CheckpointShardLost, WorkerExited]
    assert [type(item.event) for item in out if isinstance(item, Publish)] == expected


def test_a_failure_is_reported_at_once(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(ready(rank))
    assert len(published(node.do(RankExited(rank, code=1)), WorkerExited)) == 1


def test_nothing_of_an_ended_attempt_is_announced(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(ready(rank), released())
    assert published(node.do(written(rank)), CheckpointShardWritten) == []


def test_a_requested_checkpoint_reaches_each_rank_once(node: Node):
    (rank,) = node.running(gpus=(0,))
    asked = CheckpointRequested(job_id="job", attempt=1, reason="drain")
    envelope = Envelope(id="x", source="/t", time=START, subject="job", data=asked)
    request = Received(envelope, "t", 0, 0)
    assert node.do(request) == []
    out = node.do(RankMessage(rank, Hello(rank=0, token="t")))
    assert out == [SendControl(rank, Control(checkpoint_request=1))]
    assert node.do(request) == []
    assert node.do(asked) == [SendControl(rank, Control(checkpoint_request=2))]


def test_a_changed_interval_reaches_the_ranks_of_its_job_that_run_and_that_come(node: Node):
    (rank,) = node.running(gpus=(0,))
    assert node.do(CheckpointIntervalChanged(job_id="job", interval_s=90.0)) == []
    told = [SendControl(rank, Control(interval_s=90.0))]
    assert node.do(RankMessage(rank, Hello(rank=0, token="t"))) == told
    assert node.do(CheckpointIntervalChanged(job_id="other", interval_s=60.0)) == []
    out = node.do(CheckpointIntervalChanged(job_id="job", interval_s=60.0))
    assert out == [SendControl(rank, Control(interval_s=60.0))]


def training(node: Node, rank: RankKey) -> None:
    """The rank says that it trains, and takes ten steps of 0.5 s until now."""
    node.do(RankMessage(rank, Doing(activity=RankActivity.TRAINING)))
    ends_ms = tuple(range(0, 5001, 500))
    report = Report(step=tuple(range(1, len(ends_ms) + 1)), time_ms=ends_ms, metrics={})
    node.do(RankMessage(rank, report))


def status(node: Node) -> RankStatus:
    """What the next heartbeat says of the only rank."""
    (beat,) = (item.heartbeat for item in node.do(Tick()) if isinstance(item, SendHeartbeat))
    return beat.gangs[0].ranks[0]


def test_a_heartbeat_says_how_fast_a_rank_steps_and_since_when_it_is_quiet(node: Node):
    (rank,) = node.running(gpus=(0,))
    training(node, rank)
    for _ in range(2):
        node.time_s += 1.5
        told = status(node)
    assert (told.step, told.activity, told.step_p99_s) == (11, RankActivity.TRAINING, 0.5)
    assert told.quiet_s == 3.0


def test_a_heartbeat_says_how_long_a_rank_works_and_what_troubles_it(node: Node):
    (rank,) = node.running(gpus=(0,))
    trouble = Trouble(kind=TroubleKind.LOSS_SPIKE, step=7, message="the loss leapt up")
    report = Report(step=(1,) * 10, time_ms=(0,) * 10, metrics={"busy_s": (0.25,) * 10})
    node.do(RankMessage(rank, report), RankMessage(rank, Troubled(trouble=trouble)))
    node.time_s += 1.5
    told = status(node)
    assert (told.busy_s, told.trouble) == (0.25, trouble)


def test_after_the_agent_stood_still_no_rank_is_quiet(node: Node):
    (rank,) = node.running(gpus=(0,))
    training(node, rank)
    node.acked()
    node.time_s += 9.0
    assert status(node).quiet_s == 0.0


def test_ranks_are_the_same_to_a_program_that_goes_on(node: Node):
    ranks = node.running()
    node.acked()
    node.do(RankMessage(ranks[0], Report(step=(7,), time_ms=(1,), metrics={"loss": (0.5,)})))
    before = node.core.member.lease_ends_s

    assert begun_anew(node) == []

    assert (node.core.member.standing.joined, node.core.incarnation) == (True, "boot")
    assert node.core.member.lease_ends_s == before
    exits = published(node.do(RankExited(ranks[0], code=1)), WorkerExited)
    assert [(item.incarnation, item.last_step) for item in exits] == [("boot", 7)]
    assert node.do(allocation(attempt=1)) == []
    assert KillRank(ranks[1]) in node.do(released())


def test_a_program_that_goes_on_asks_again_what_nobody_will_answer(node: Node):
    (rank,) = node.running(gpus=(0,))
    shard = node.do(ready(rank))[-1]
    node.do(RankExited(rank, code=0))  # it is reported after its upload
    waiting = node.do(allocation(job_id="other", gpus=(1,)))

    assert kinds(waiting) == [Prepare]
    assert begun_anew(node) == [shard, *waiting]

    out = node.do(written(rank))
    expected = [CheckpointShardWritten, WorkerExited]
    assert [type(item.event) for item in out if isinstance(item, Publish)] == expected
    (store,) = node.do(Prepared(GangKey("other", 1)))
    assert begun_anew(node) == [store]
    assert kinds(node.do(StoreOpened(GangKey("other", 1)))) == [Spawn]
