"""The gateway lists the queue as the scheduler starts it, folded from the scheduler's log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from gangline_bus.codec import decode, encode
from gangline_bus.decision import Decision
from gangline_bus.fold import Folded, records_between
from gangline_bus.memory import Broker
from gangline_bus.ports import TopicPartition, TopicSettings
from gangline_bus.snapshot import SnapshotHeader, Snapshots
from gangline_gateway.followed import NoStateError
from gangline_gateway.queue import queue
from gangline_gateway.scheduling import followed, shards
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.policy.config import Policy, order_named
from gangline_scheduler.core.policy.configured import Limits, configured
from gangline_scheduler.core.snapshot import codec
from gangline_scheduler.core.state import State
from gangline_schemas.api.cluster import Queue
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.faults import NodeFailed
from gangline_schemas.events.quota import TeamConfigured
from support.builders.deciding import Drive, team
from support.builders.scheduler import Cluster, node, started_jobs

PLACE = TopicPartition(Topic.SCHEDULING, 0)


class Gateway:
    """Follows the log of a scheduler that is driven without a bus."""

    def __init__(self, cluster: Drive[State], kept: list[bytes] | None = None) -> None:
        self.cluster = cluster
        self.bus = Broker().connect("t")
        self.bus.create_topics([TopicSettings(PLACE.topic, 1, -1)])
        self.scheduling = followed(None if kept is None else Kept(kept))
        self.read = 0

    def publish(self) -> int:
        """What the scheduler wrote since; where its log ends."""
        written, writer = self.bus.end_offsets([PLACE])[PLACE], self.bus.writer()
        for seq, (decision, at) in enumerate(self.cluster.log[written:], written):
            envelope = Envelope(
                f"e{seq}", "/t", at, decision.subject, decision.event,
                position=LogPosition(0, 1, seq),
            )  # fmt: skip
            writer.send(encode(envelope, topic=PLACE.topic, partition=0))
        return self.bus.end_offsets([PLACE])[PLACE]

    def start(self) -> int:
        """Begin, and read on from where it says; how many records it reads."""
        end = self.publish()
        self.scheduling.restore(self.bus, [PLACE], lambda: None)
        self.read = self.scheduling.begins(PLACE) or 0
        return end - self.read

    def queue(self, now: datetime, visible: frozenset[str] | None = None, **page: int) -> Queue:
        end = self.publish()
        for record in records_between(self.bus, "t", PLACE, self.read, end):
            self.scheduling.apply(record, decode(record), whole=True)
        self.read = end
        return queue(shards(self.scheduling.copies()), now, visible, **page)


class Kept:
    """`SnapshotStore` over a list."""

    def __init__(self, held: list[bytes]) -> None:
        self.held = held

    def newest(self, service: str, shard: int) -> list[bytes]:
        return [*reversed(self.held)] if (service, shard) == ("scheduler", 0) else []

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self.held.append(data)


def names(shown: Queue) -> list[str]:
    return [entry.job_id for entry in shown.queue]


def crowded(order: str) -> Cluster:
    """All GPUs are taken; waiting jobs differ in team, priority, age, length; one restarts."""
    cluster = Cluster(
        node("n1", 1), node("n2", 1), node("n3", 2), policy=Policy(order=order_named(order))
    )
    org = team("org", limit=8, guarantee=1)
    cluster.give(TeamConfigured(config=org))
    cluster.give(TeamConfigured(config=team("nlp").model_copy(update={"parent": "org"})))
    cluster.run("holds", 2, expected_runtime_hours=90)
    cluster.run("first", of_team="cv", expected_runtime_hours=1)
    cluster.run("again", of_team="cv", expected_runtime_hours=2)
    (part,) = cluster.job("again").gang.nodes  # type: ignore[union-attr]
    cluster.submit("org-50", of_team="org", priority=50, expected_runtime_hours=8)
    cluster.submit("cv-60", of_team="cv", priority=60, expected_runtime_hours=4)
    cluster.submit("tie-b", of_team="cv", priority=70, expected_runtime_hours=3)
    cluster.submit("tie-a", of_team="cv", priority=70, expected_runtime_hours=3)
    cluster.now += timedelta(minutes=20)
    cluster.submit("nlp-40", of_team="nlp", priority=40, expected_runtime_hours=6)
    cluster.give(NodeFailed(node_id=part.node_id, incarnation="i1", reason="silent"))
    cluster.fail("again", avoid=(part.node_id,))
    return cluster


@pytest.mark.parametrize("order", ["fair", "drf", "short", "fifo", "sjf"])
def test_who_is_shown_first_is_started_first(order: str) -> None:
    cluster = crowded(order)
    gateway = Gateway(cluster)
    gateway.start()
    running = next(job for job in cluster.state.live if job != "holds")
    started = []
    while shown := names(gateway.queue(cluster.now)):
        cluster.now += timedelta(minutes=1)
        began = started_jobs(cluster.exit(running))
        assert began == shown[:1]
        cluster.start(began[0])
        running = began[0]
        started += began
    assert len(started) == 6
    assert started[0] == "again" or order in {"fifo", "sjf"}


@pytest.mark.parametrize("order", ["fair", "drf", "short", "fifo", "sjf"])
def test_a_job_within_its_team_s_guarantee_is_shown_where_it_starts(order: str) -> None:
    """It starts before others that stand better, in each order that is not strict; once."""
    cluster = Cluster(node("n1", 1), policy=Policy(order=order_named(order)))
    cluster.give(TeamConfigured(config=team("nlp", guarantee=1)))
    cluster.run("runs", of_team="cv", preemptible=False)
    cluster.submit("cv", of_team="cv", priority=30, expected_runtime_hours=1)
    cluster.submit("nlp-2", of_team="nlp", priority=60, expected_runtime_hours=8)
    cluster.submit("nlp-1", of_team="nlp", priority=50, expected_runtime_hours=9)
    gateway = Gateway(cluster)
    gateway.start()
    shown = names(gateway.queue(cluster.now))
    assert sorted(shown) == ["cv", "nlp-1", "nlp-2"]
    assert shown[0] == "cv" or order not in {"fifo", "sjf"}
    assert shown[0].startswith("nlp") or order in {"fifo", "sjf"}
    assert started_jobs(cluster.exit("runs")) == shown[:1]


def test_a_team_is_measured_with_those_below_it() -> None:
    """Its child holds twice what the parent is guaranteed: the other team's job comes first."""
    cluster = crowded("fair")
    gateway = Gateway(cluster)
    gateway.start()
    entries = {entry.job_id: entry for entry in gateway.queue(cluster.now).queue}
    assert (entries["org-50"].score, entries["cv-60"].score) == (98, 58)
    assert entries["org-50"].position > entries["cv-60"].position


def test_each_term_of_the_score_is_shown_and_why_a_job_comes_first() -> None:
    cluster = crowded("fair")
    gateway = Gateway(cluster)
    gateway.start()
    entries = {entry.job_id: entry for entry in gateway.queue(cluster.now).queue}
    for entry in entries.values():
        terms = entry.order
        assert terms is not None
        assert entry.score == terms.score
        total = terms.priority + terms.share_penalty - terms.waiting_bonus
        assert terms.score == pytest.approx(total, abs=0.002)
    assert (entries["again"].comes_first, entries["cv-60"].comes_first) == ("restart", "")
    assert (entries["cv-60"].order.waiting_bonus, entries["again"].shard) == (2.0, 0)  # type: ignore[union-attr]


def test_a_guarantee_comes_first_in_words_and_other_orders_have_no_terms() -> None:
    cluster = Cluster(node("n1", 1), policy=Policy(order=order_named("drf")))
    cluster.give(TeamConfigured(config=team("nlp", guarantee=1)))
    cluster.run("runs", of_team="cv", preemptible=False)
    cluster.submit("cv", of_team="cv", priority=30)
    cluster.submit("nlp", of_team="nlp", priority=60)
    gateway = Gateway(cluster)
    gateway.start()
    shown = gateway.queue(cluster.now).queue
    assert [(entry.job_id, entry.comes_first, entry.order) for entry in shown] == [
        ("nlp", "guarantee", None),
        ("cv", "", None),
    ]


def test_a_caller_sees_its_teams_at_their_places_among_all_and_page_by_page() -> None:
    cluster = crowded("fair")
    gateway = Gateway(cluster)
    gateway.start()
    everybody = gateway.queue(cluster.now)
    assert [entry.position for entry in everybody.queue] == [1, 2, 3, 4, 5, 6]
    assert (everybody.pending_jobs, everybody.pending_gpus) == (6, 6)
    own = gateway.queue(cluster.now, frozenset({"nlp", "org"}))
    assert {entry.team for entry in own.queue} == {"nlp", "org"}
    assert own.queue == [entry for entry in everybody.queue if entry.team != "cv"]
    first = gateway.queue(cluster.now, None, limit=4)
    rest = gateway.queue(cluster.now, None, limit=4, after=first.cursor or 0)
    assert (first.cursor, rest.cursor) == (4, None)
    assert [*first.queue, *rest.queue] == everybody.queue


def test_why_a_job_waits_and_since_when_is_the_scheduler_s_word() -> None:
    cluster = crowded("fair")
    cluster.tick(1)
    gateway = Gateway(cluster)
    gateway.start()
    shown = {entry.job_id: entry for entry in gateway.queue(cluster.now).queue}
    for job_id, entry in shown.items():
        job = cluster.job(job_id)
        assert job.waiting is not None
        assert entry.waiting is not None
        assert (entry.waiting.code, entry.waiting.since) == (job.waiting.code, job.waiting.at)
        assert (entry.waiting_since, entry.user) == (job.waiting_since, "ada")
        assert entry.waited_s == (cluster.now - job.waiting_since).total_seconds()


def test_a_start_goes_on_from_the_scheduler_s_own_snapshot() -> None:
    cluster = crowded("sjf")
    kept: list[bytes] = []
    folded = Folded(cluster.state, len(cluster.log), 1, "", {}, len(cluster.log) - 1)
    folded.last = f"e{folded.offset} {cluster.log[-1][1].isoformat()}"
    kept_by = Snapshots(Kept(kept), codec(Scheduler().initial))
    kept_by.write("scheduler", PLACE, folded, folded.offset)
    whole, short = Gateway(cluster), Gateway(cluster, kept)

    assert whole.start() == len(cluster.log)
    assert short.start() == 1
    assert names(short.queue(cluster.now)) == names(whole.queue(cluster.now)) != []
    cluster.submit("later", of_team="cv", expected_runtime_hours=0.1)
    assert names(short.queue(cluster.now)) == names(whole.queue(cluster.now))


@pytest.mark.parametrize("what", ["unknown record", "gap"])
def test_a_log_that_cannot_be_folded_has_no_exact_state_and_says_so(what: str) -> None:
    cluster = crowded("fair")
    gateway = Gateway(cluster)
    gateway.start()
    gateway.queue(cluster.now)
    (record,) = records_between(gateway.bus, "t", PLACE, gateway.read - 1, gateway.read)
    told = decode(record)
    if what == "gap":
        gateway.scheduling.apply(record, told, whole=True)
        assert gateway.scheduling.copies().states(), "one that is known is passed over"
    ahead = replace(told, position=LogPosition(0, 1, len(cluster.log) + 7))
    gateway.scheduling.apply(record, ahead if what == "gap" else None, whole=what == "gap")
    said = "see the log" if what == "gap" else "upgrade the gateway"
    with pytest.raises(NoStateError, match=said):
        gateway.scheduling.copies().states()


def test_an_order_of_a_later_scheduler_is_not_guessed() -> None:
    cluster = crowded("fair")
    later = configured(Policy(), Limits()).model_copy(update={"order": "later"})
    cluster.log.append((Decision("policy", later), cluster.now))
    gateway = Gateway(cluster)
    gateway.start()
    with pytest.raises(NoStateError, match="'later' is not one of"):
        gateway.queue(cluster.now)
