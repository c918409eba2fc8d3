"""The agent's decisions, as given / when / then on its pure core."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from pydantic import TypeAdapter

from gangline_bus.codec import Received
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.faults import CheckpointRequested, FailureCause, GangFailed
from gangline_schemas.events.scheduling import (
    CheckpointIntervalChanged,
    GangAllocated,
    GangPreempting,
    GangReleased,
    NodeAssignment,
    ReleaseReason,
    Rendezvous,
    StopReason,
)
from gangline_schemas.events.workers import (
    CheckpointShardWritten,
    DataBlockDamaged,
    ExitReason,
    GpuInfo,
    NodeInfo,
    NodeJoined,
    NodeLeaving,
    ObjectDigest,
    RankActivity,
    RankStatus,
    SampleRange,
    Trouble,
    TroubleKind,
    WorkerExited,
    WorkerStacks,
    WorkerStarted,
    WorkerStep,
)
from gangline_schemas.job import JobSpec
from gangline_schemas.rank_protocol import (
    Control,
    DataDamaged,
    Doing,
    Hello,
    LeaveOutSamples,
    Report,
    ShardReady,
    Troubled,
)
from gangline_worker.agent.core import AgentCore, AgentLimits
from gangline_worker.agent.core_state import CoreState
from gangline_worker.agent.model import (
    DAMAGE_LIMIT,
    STACKS_WAIT_S,
    Action,
    CloseGang,
    GangKey,
    HeartbeatAcked,
    Input,
    KillRank,
    Leave,
    Moment,
    OpenStore,
    Prepare,
    Prepared,
    PrepareFailed,
    Publish,
    RankExited,
    RankKey,
    RankMessage,
    RankSpawned,
    RankStacks,
    SendControl,
    SendHeartbeat,
    Spawn,
    SpawnFailed,
    StacksTaken,
    StoreFailed,
    StoreOpened,
    TakeStacks,
    TerminateRank,
    Tick,
    Upload,
    Uploaded,
    UploadFailed,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
NODE = NodeInfo(
    node_id="node-0",
    incarnation="boot",
    address="127.0.0.1",
    hostname="host",
    gpus=(
        GpuInfo(index=0, model="cpu", memory_gb=1),
        GpuInfo(index=1, model="cpu", memory_gb=1),
    ),
    cpus=2,
    memory_gb=4,
    rendezvous_ports=(21000,),
)
LEASE_S = 10.0
DIGEST = ObjectDigest(key="k", size_bytes=1, xxh3="0" * 32)


class Node:
    """The core with a clock of its own."""

    def __init__(self) -> None:
        self.core = AgentCore(NODE, AgentLimits(heartbeat_interval_s=1.0, lease_s=LEASE_S))
        self.time_s = 100.0
        self._offsets = count()
        self.first = self.core.start(self.at)

    @property
    def at(self) -> Moment:
        return Moment(self.time_s, START + timedelta(seconds=self.time_s))

    def do(self, *items: Input | Event) -> list[Action]:
        """All actions that follow from these inputs."""
        out: list[Action] = []
        for item in items:
            given = self._received(item) if isinstance(item, Event) else item
            out += self.core.handle(given, self.at)
        return out

    def acked(self) -> list[Action]:
        return self.do(HeartbeatAcked(self.core.incarnation, self.time_s))

    def running(self, attempt: int = 1, **allocated: object) -> list[RankKey]:
        """A gang whose ranks all run."""
        event = allocation(attempt, **allocated)
        gang = GangKey(event.job_id, attempt)
        out = self.do(event, Prepared(gang), StoreOpened(gang))
        ranks = [action.rank for action in out if isinstance(action, Spawn)]
        self.do(*(RankSpawned(rank, 1000 + rank.rank) for rank in ranks))
        return ranks

    def _received(self, event: Event) -> Received:
        offset = next(self._offsets)
        envelope = Envelope(id=f"e{offset}", source="/t", time=self.at.utc, subject="s", data=event)
        return Received(envelope, "t", 0, offset)


def allocation(
    attempt: int = 1,
    *,
    job_id: str = "job",
    node_id: str = "node-0",
    incarnation: str = "boot",
    gpus: tuple[int, ...] = (0, 1),
    first_rank: int = 0,
    grace_s: float = 30.0,
) -> GangAllocated:
    spec = {"name": "j", "team": "nlp", "resources": {"gpus": 4}, "run": "true"}
    return GangAllocated(
        job_id=job_id,
        attempt=attempt,
        team="nlp",
        world_size=4,
        nodes=(
            NodeAssignment(
                node_id=node_id,
                incarnation=incarnation,
                address="127.0.0.1",
                gpus=gpus,
                first_rank=first_rank,
            ),
        ),
        rendezvous=Rendezvous(address="127.0.0.1", port=21000),
        spec=JobSpec.model_validate({**spec, "stop_grace_seconds": grace_s}),
    )


def released(attempt: int = 1, reason: ReleaseReason = ReleaseReason.RESTARTING) -> GangReleased:
    return GangReleased(
        job_id="job", attempt=attempt, reason=reason, allocated_at=START, gpu_seconds=1.0
    )


def hangs(cause: FailureCause = FailureCause.HANG) -> GangFailed:
    return GangFailed(
        job_id="job",
        attempt=1,
        cause=cause,
        action="restart",
        message="no rank got on",
        restarts_used=1,
        restarts_max=3,
        failed_at=START,
    )


def taken(*ranks: RankKey) -> StacksTaken:
    """What was read of them."""
    found = tuple(RankStacks(rank, 1000 + rank.rank, "stopped", "thread M") for rank in ranks)
    return StacksTaken(GangKey("job", 1), found)


def preempting(node: Node, after_s: float, attempt: int = 1) -> GangPreempting:
    deadline = node.at.utc + timedelta(seconds=after_s)
    return GangPreempting(
        job_id="job", attempt=attempt, reason=StopReason.PREEMPTED, deadline=deadline
    )


def published(actions: list[Action], kind: type[Event]) -> list:
    return [
        item.event for item in actions if isinstance(item, Publish) and isinstance(item.event, kind)
    ]


def kinds(actions: list[Action]) -> list[type]:
    return [type(item) for item in actions if not isinstance(item, SendHeartbeat)]


def ready(rank: RankKey, step: int = 5, world_size: int = 4) -> RankMessage:
    message = ShardReady(
        step=step, rank=rank.rank, world_size=world_size, manifest=DIGEST, shard=DIGEST
    )
    return RankMessage(rank, message)


def written(rank: RankKey, step: int = 5) -> Uploaded:
    event = CheckpointShardWritten(
        job_id="job",
        attempt=rank.gang.attempt,
        step=step,
        rank=rank.rank,
        world_size=4,
        node_id="node-0",
        manifest=DIGEST,
        shards=(DIGEST,),
    )
    return Uploaded(rank, event)


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
    assert node.do(Prepared(gang)) == [OpenStore(gang, "127.0.0.1", 21000)]
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


def test_a_higher_attempt_waits_until_the_older_one_is_gone(node: Node):
    older = node.running(attempt=1)
    out = node.do(allocation(attempt=2))
    assert [item for item in out if isinstance(item, KillRank)] == [KillRank(r) for r in older]
    newer = GangKey("job", 2)
    assert Spawn not in kinds(node.do(Prepared(newer), StoreOpened(newer)))
    assert Spawn not in kinds(node.do(RankExited(older[0], signal=9)))
    out = node.do(RankExited(older[1], signal=9))
    assert kinds(out) == [Publish, CloseGang, Spawn, Spawn]
    assert published(out, WorkerExited)[0].reason is ExitReason.FENCED


def test_a_higher_attempt_elsewhere_ends_the_older_one_here(node: Node):
    node.running(attempt=1)
    out = node.do(allocation(attempt=2, node_id="node-9"))
    assert kinds(out) == [KillRank, KillRank]


def test_a_gang_waits_for_the_gpus_of_one_that_is_being_killed(node: Node):
    ranks = node.running()
    node.do(released())
    other = GangKey("other", 1)
    out = node.do(allocation(job_id="other", gpus=(1,)), Prepared(other), StoreOpened(other))
    assert Spawn not in kinds(out)
    out = node.do(*(RankExited(rank, signal=9) for rank in ranks))
    assert kinds(out).count(Spawn) == 1


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


def test_the_store_stays_open_until_the_gang_is_released(node: Node):
    ranks = node.running()
    assert CloseGang not in kinds(node.do(*(RankExited(rank, code=0) for rank in ranks)))
    out = node.do(released(reason=ReleaseReason.SUCCEEDED))
    assert out == [CloseGang(GangKey("job", 1), final=True)]


def test_preempting_asks_by_both_ways_and_kills_after_the_deadline(node: Node):
    ranks = node.running(gpus=(0,))
    node.do(RankMessage(ranks[0], Hello(rank=0, token="t")))
    out = node.do(preempting(node, 5.0))
    assert out == [SendControl(ranks[0], Control(stop="preempted")), TerminateRank(ranks[0])]
    assert node.do(preempting(node, 5.0)) == []
    node.time_s += 4.9
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.2
    assert KillRank in kinds(node.do(Tick()))
    (exited,) = published(node.do(RankExited(ranks[0], signal=9)), WorkerExited)
    assert (exited.reason, exited.signal) == (ExitReason.STOPPED, 9)


def test_a_rank_that_saved_and_returned_0_when_asked_was_stopped(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(preempting(node, 5.0))
    (exited,) = published(node.do(RankExited(rank, code=0)), WorkerExited)
    assert (exited.reason, exited.exit_code) == (ExitReason.STOPPED, 0)


def test_a_rank_that_was_stopped_has_not_finished_though_the_lease_ended_meanwhile(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(preempting(node, 5.0))
    node.time_s += LEASE_S + 0.1
    assert KillRank(rank) in node.do(Tick())
    (exited,) = published(node.do(RankExited(rank, code=0)), WorkerExited)
    assert (exited.reason, exited.exit_code) == (ExitReason.STOPPED, 0)


def test_a_far_deadline_is_bounded_by_the_grace_of_the_spec(node: Node):
    (rank,) = node.running(gpus=(0,), grace_s=2.0)
    node.do(preempting(node, 10_000.0))
    node.acked()
    node.time_s += 2.1
    assert KillRank(rank) in node.do(Tick())


def test_a_gang_that_is_stopped_before_it_started_never_starts(node: Node):
    node.do(allocation())
    exits = published(node.do(preempting(node, 5.0)), WorkerExited)
    assert [item.reason for item in exits] == [ExitReason.STOPPED] * 2
    gang = GangKey("job", 1)
    assert Spawn not in kinds(node.do(Prepared(gang), StoreOpened(gang)))
    assert kinds(node.do(released())) == [CloseGang]


def test_a_kill_that_comes_before_the_process_does_follows_it(node: Node):
    gang = GangKey("job", 1)
    node.do(allocation(gpus=(0,)), Prepared(gang), StoreOpened(gang))
    assert KillRank not in kinds(node.do(released()))
    assert KillRank(RankKey(gang, 0)) in node.do(RankSpawned(RankKey(gang, 0), 1))


def test_a_kill_is_repeated_until_the_process_is_gone(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(released())
    node.time_s += 1.1
    assert KillRank(rank) in node.do(Tick())


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
    assert [len(actions) for actions in more] == [1] * (DAMAGE_LIMIT - 1) + [0]


def test_a_rank_that_ends_says_what_the_next_attempt_goes_without(node: Node):
    rank, other = node.running()
    samples = (SampleRange(first=16, count=8),)
    assert node.do(RankMessage(rank, LeaveOutSamples(left_out=samples))) == []
    exits = published(node.do(RankExited(rank, code=1), RankExited(other, signal=9)), WorkerExited)
    assert [exited.left_out for exited in exits] == [samples, ()]


def test_a_shard_is_uploaded_once_and_announced(node: Node):
    (rank,) = node.running(gpus=(0,))
    assert kinds(node.do(ready(rank), ready(rank))) == [Upload]
    assert len(published(node.do(written(rank)), CheckpointShardWritten)) == 1
    assert node.do(written(rank)) == []


def test_a_shard_of_another_rank_or_world_is_refused(node: Node):
    (rank,) = node.running(gpus=(0,))
    other = ready(RankKey(rank.gang, 1)).message
    assert Upload not in kinds(node.do(RankMessage(rank, other)))
    assert Upload not in kinds(node.do(ready(rank, world_size=8)))


@pytest.mark.parametrize("ended", [True, False])
def test_an_orderly_exit_is_reported_after_its_uploads(node: Node, ended: bool):
    (rank,) = node.running(gpus=(0,))
    node.do(preempting(node, 20.0), ready(rank))
    assert published(node.do(RankExited(rank, code=0)), WorkerExited) == []
    outcome = written(rank) if ended else UploadFailed(rank, 5, "the store is full")
    out = node.do(outcome)
    expected = [CheckpointShardWritten, WorkerExited] if ended else [WorkerExited]
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


def test_a_lost_lease_kills_all_and_the_node_joins_again_when_they_are_gone(node: Node):
    ranks = node.running()
    node.time_s += LEASE_S - 0.1
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.2
    out = node.do(Tick())
    assert [item for item in out if isinstance(item, KillRank)] == [KillRank(r) for r in ranks]
    assert published(node.acked(), NodeJoined) == []
    exits = published(node.do(*(RankExited(rank, signal=9) for rank in ranks)), WorkerExited)
    assert {(item.reason, item.incarnation) for item in exits} == {(ExitReason.LEASE_LOST, "boot")}
    (joined,) = published(node.acked(), NodeJoined)
    assert joined.node.incarnation == node.core.incarnation == "boot.1"
    assert node.do(allocation(attempt=2)) == []
    assert Prepare in kinds(node.do(allocation(attempt=3, incarnation="boot.1")))


def test_an_acknowledgement_counts_from_its_sending_and_for_its_incarnation(node: Node):
    sent_s = node.time_s
    node.running()
    node.time_s += LEASE_S - 1
    node.do(HeartbeatAcked("boot", sent_s + 2))
    node.time_s += 2.5
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 1.0
    assert KillRank in kinds(node.do(Tick()))
    assert published(node.do(HeartbeatAcked("boot", node.time_s)), NodeJoined) == []


def test_leaving_stops_the_ranks_and_takes_no_more(node: Node):
    (rank,) = node.running(gpus=(0,))
    out = node.do(Leave("stop", 5.0))
    assert len(published(out, NodeLeaving)) == 1
    assert TerminateRank(rank) in out
    assert Prepare not in kinds(node.do(allocation(job_id="other", gpus=(1,))))
    assert not node.core.gone
    (exited,) = published(node.do(RankExited(rank, code=0)), WorkerExited)
    assert exited.reason is ExitReason.STOPPED
    assert node.core.gone


def test_a_second_order_to_leave_can_only_shorten_the_time_of_the_ranks(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(Leave("aws will terminate this spot instance", 20.0))
    assert node.do(Leave("the agent was told to stop", 2.0), Leave("again", 9.0)) == []
    node.time_s += 1.9
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.2
    assert KillRank(rank) in node.do(Tick())


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


def test_the_stacks_of_a_hanging_gang_are_taken_before_it_is_killed(node: Node):
    first, second = node.running()
    node.do(RankMessage(first, Report(step=(7,), time_ms=(1,), metrics={})))
    pids = {first: 1000, second: 1001}
    assert node.do(hangs()) == [TakeStacks(first.gang, pids)]
    assert kinds(node.do(released())) == []

    out = node.do(taken(first, second))

    stacks = published(out, WorkerStacks)
    assert [(item.rank, item.pid, item.state) for item in stacks] == [
        (0, 1000, "stopped"),
        (1, 1001, "stopped"),
    ]
    assert [(item.last_step, item.stacks) for item in stacks] == [
        (7, "thread M"),
        (None, "thread M"),
    ]
    assert out[2:] == [KillRank(first), KillRank(second)]


def test_stacks_are_waited_for_a_while_only(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(hangs(), released())
    node.time_s += STACKS_WAIT_S - 0.1
    assert KillRank not in kinds(node.do(Tick()))
    node.time_s += 0.1
    assert KillRank(rank) in node.do(Tick())
    node.do(RankExited(rank, signal=9))
    # What is known all the same is told.
    assert len(published(node.do(taken(rank)), WorkerStacks)) == 1


def test_stacks_that_are_there_let_the_gang_run_on_until_it_is_released(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(hangs())
    assert KillRank not in kinds(node.do(taken(rank), Tick()))
    assert KillRank(rank) in node.do(released())


def test_a_rank_that_was_to_be_killed_by_then_is_killed_when_its_stacks_are_there(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.do(preempting(node, 1.0), hangs())
    node.time_s += 1.5
    assert KillRank not in kinds(node.do(Tick()))
    assert KillRank(rank) in node.do(taken(rank), Tick())


def test_a_lost_lease_waits_for_no_stacks(node: Node):
    (rank,) = node.running(gpus=(0,))
    node.time_s += LEASE_S - 0.1
    node.do(hangs(), released())
    node.time_s += 0.2
    assert KillRank(rank) in node.do(Tick())


def test_stacks_are_taken_once_and_for_a_hang_alone(node: Node):
    node.running(gpus=(0,))
    assert node.do(hangs(FailureCause.NODE)) == []
    assert kinds(node.do(hangs(), hangs())) == [TakeStacks]


def test_a_gang_that_does_not_run_here_has_no_stacks(node: Node):
    assert node.do(hangs()) == []
    node.do(allocation())
    assert node.do(hangs()) == []


def begun_anew(node: Node) -> list[Action]:
    """What the core asks for that another program of the agent's process begins with."""
    codec = TypeAdapter(CoreState)
    state = codec.validate_json(codec.dump_json(node.core.state))
    node.core = AgentCore(NODE, AgentLimits(heartbeat_interval_s=1.0, lease_s=LEASE_S))
    return node.core.go_on(state)


def test_ranks_are_the_same_to_a_program_that_goes_on(node: Node):
    ranks = node.running()
    node.acked()
    node.do(RankMessage(ranks[0], Report(step=(7,), time_ms=(1,), metrics={"loss": (0.5,)})))
    before = node.core.lease_ends_s

    assert begun_anew(node) == []

    assert (node.core.joined, node.core.incarnation) == (True, "boot")
    assert node.core.lease_ends_s == before
    exits = published(node.do(RankExited(ranks[0], code=1)), WorkerExited)
    assert [(item.incarnation, item.last_step) for item in exits] == [("boot", 7)]
    assert node.do(allocation(attempt=1)) == []
    assert KillRank(ranks[1]) in node.do(released())


def test_a_program_that_goes_on_asks_again_what_nobody_will_answer(node: Node):
    (rank,) = node.running(gpus=(0,))
    shard = node.do(preempting(node, 20.0), ready(rank))[-1]
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


def test_stacks_are_taken_again_by_a_program_that_goes_on(node: Node):
    ranks = node.running()
    node.do(hangs())
    assert begun_anew(node) == [TakeStacks(ranks[0].gang, {ranks[0]: 1000, ranks[1]: 1001})]
