"""A gateway that starts from a snapshot of its model sees what one sees that read all logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from gangline_bus.codec import encode
from gangline_bus.fold import fold_log
from gangline_bus.memory import Broker
from gangline_bus.ports import TopicPartition
from gangline_bus.snapshot import FORMAT, SnapshotHeader, Snapshots, SnapshotStore, pack
from gangline_bus.topics import TopicNames, create_topics
from gangline_gateway import present
from gangline_gateway.live import Live
from gangline_gateway.live_model import LiveFacts
from gangline_gateway.tail import Tail
from gangline_gateway.view_snapshot import VERSION, ViewSnapshots
from gangline_gateway.view_snapshot import codec as view_codec
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import codec as scheduling_codec
from gangline_schemas.api.jobs import JobSummary
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.quota import JobAdmitted
from gangline_schemas.events.requests import JobSubmitted
from golden.record import Held
from golden.scenario import Logged, Scenario
from support.waiting import until

NAMES = TopicNames("t.")
DEADLINE_S = 20.0
HALVES = 2
NOW = datetime(2026, 11, 25, tzinfo=UTC)
HEADER = SnapshotHeader(
    format=FORMAT, state=VERSION, form=view_codec().form, service="gateway", shard=0, next_seq=1,
    writer_epoch=0, offset=0, last="",
)  # fmt: skip


class Kept:
    """`SnapshotStore` in memory, the newest last."""

    def __init__(self) -> None:
        self.held: list[bytes] = []
        self.seqs: list[int] = []

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        assert (service, shard) == ("gateway", 0)
        yield from reversed(self.held)

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self.held.append(data)
        self.seqs.append(header.next_seq)


class Away(Kept):
    """A store that is away."""

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        raise OSError("away")


def logs(seed: int) -> list[list[tuple[str, Logged]]]:
    """The logs of quota and of the scheduler in the order of time, in two parts."""
    scenario = Scenario(seed)
    scenario.run(400)
    merged = [
        (name, entry)
        for name in ("quota", "scheduler")
        for entry in scenario.logs[name]
    ]  # fmt: skip
    merged.sort(key=lambda item: item[1].at)
    middle = len(merged) // HALVES
    return [merged[:middle], merged[middle:]]


@pytest.fixture(scope="module")
def parts() -> list[list[tuple[str, Logged]]]:
    return logs(5)


class Bus:
    """A broker on which the logs are written bit by bit."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.bus = self.broker.connect("writer")
        create_topics(self.bus, NAMES)
        self._seqs = {"quota": 0, "scheduler": 0}

    def write(self, part: list[tuple[str, Logged]]) -> None:
        """Decisions in transactions; of each admitted job its submission and a step too."""
        for name, entry in part:
            seq = self._seqs[name]
            self._seqs[name] += 1
            envelope = Envelope(
                f"{name}-{seq}", "/t", entry.at, entry.subject, entry.event,
                position=LogPosition(0, 1, seq),
            )  # fmt: skip
            topic = NAMES.name(topic_of(entry.event.type))
            out = encode(envelope, topic=topic, key="0", partition=0)
            self.bus.transactional_writer(f"gangline.{name}.0").commit([out], {}, "g")
            if isinstance(entry.event, JobAdmitted):
                self._streams(entry, entry.event)

    def _streams(self, entry: Logged, event: JobAdmitted) -> None:
        submitted = JobSubmitted(job_id=event.job_id, spec=event.spec, user=event.user)
        progress = RunProgress(
            run_id=event.job_id, team=event.spec.team, attempt=1, rank=0, step=1,
            time_ms=1, metrics={"loss": 0.25},
        )  # fmt: skip
        for said in (submitted, progress):
            envelope = Envelope(f"{said.type}-{event.job_id}", "/t", entry.at, event.job_id, said)
            out = encode(envelope, topic=NAMES.name(topic_of(said.type)), key=event.job_id)
            self.bus.writer().send(out)

    @contextmanager
    def tail(
        self, views: ViewSnapshots | None = None, snapshots: SnapshotStore | None = None
    ) -> Iterator[Tail]:
        """A tail that has read all that is there."""
        found = Tail(self.broker.connect("gateway"), NAMES, views, snapshots)
        found.start()
        try:
            assert found.ready.wait(DEADLINE_S)
            yield found
        finally:
            found.close()


def views(kept: Kept, every: int = 50) -> ViewSnapshots:
    return ViewSnapshots(kept, every=every, run=lambda work: work())


def facts(tail: Tail) -> LiveFacts:
    return tail.query(Live.facts)


@pytest.fixture
def snapped(parts: list[list[tuple[str, Logged]]]) -> tuple[Bus, Kept, LiveFacts]:
    """The first part, a snapshot of it, and what the model said."""
    bus, kept = Bus(), Kept()
    bus.write(parts[0])
    with bus.tail(views(kept)) as tail:
        known = facts(tail)
    assert len(kept.held) == 1
    return bus, kept, known


def test_it_sees_what_one_sees_that_read_everything(
    snapped: tuple[Bus, Kept, LiveFacts], parts: list[list[tuple[str, Logged]]]
) -> None:
    bus, kept, known = snapped
    with capture_logs() as said, bus.tail(views(kept)) as tail:
        assert facts(tail) == known
    assert [entry["event"] for entry in said] == ["restored a snapshot"]
    assert known.jobs, "the logs hold jobs"
    assert known.progress
    assert known.ended
    bus.write(parts[1])
    with bus.tail() as whole, bus.tail(views(kept)) as tail:
        assert facts(tail) == facts(whole)
        assert facts(tail) != known
        places = tail.places(Topic.SCHEDULING)
        assert tail.ends(places) == whole.ends(places)
        assert tail.newest(places[0], 20) == whole.newest(places[0], 20)
    assert kept.seqs == sorted(set(kept.seqs))
    assert len(kept.seqs) == HALVES


def scheduler_snapshot(bus: Bus) -> Held:
    """As the scheduler stores it at the end of its log."""
    scheduler, kept = Scheduler(), Held([])
    place = TopicPartition(NAMES.name(scheduler.log), 0)
    codec = scheduling_codec(scheduler.initial)
    folded = fold_log(bus.bus, scheduler, place)
    Snapshots(kept, codec).write(scheduler.name, place, folded, folded.offset)
    return kept


def shown(tail: Tail) -> list[JobSummary]:
    view = tail.view()
    found = [view.details(job.job_id) for job in view.newest_first()]
    return [present.summary(job, NOW) for job in found if job is not None]


def test_the_scheduler_s_snapshot_may_be_newer_than_the_facts(
    snapped: tuple[Bus, Kept, LiveFacts], parts: list[list[tuple[str, Logged]]]
) -> None:
    """Its state forgot jobs, and gave back gangs, whose events the facts still lack."""
    bus, kept, _ = snapped
    bus.write(parts[1])
    stored = scheduler_snapshot(bus)
    with bus.tail() as whole, capture_logs() as said, bus.tail(views(kept), stored) as tail:
        restored = [entry["service"] for entry in said if entry["event"] == "restored a snapshot"]
        assert restored == ["scheduler", "gateway"], said
        assert facts(tail) == facts(whole)
        assert shown(tail) == shown(whole)
        assert any(job.gpus_allocated for job in shown(tail))
        nodes = whole.view().nodes
        assert tail.view().nodes == nodes != []
        for node_id in nodes:
            assert tail.view().node(node_id) == whole.view().node(node_id)


def test_a_start_beats_while_it_reads_a_snapshot_and_says_how_far_it_is(
    snapped: tuple[Bus, Kept, LiveFacts],
) -> None:
    bus, kept, _ = snapped
    beats: list[None] = []
    tail = Tail(bus.broker.connect("gateway"), NAMES, views(kept))
    tail.start(lambda: beats.append(None))
    try:
        assert len(beats) > 1
        assert tail.ready.wait(DEADLINE_S)
        done, records = tail.progress()
        assert done == records > 0
    finally:
        tail.close()


def test_a_place_where_nothing_came_keeps_its_mark(snapped: tuple[Bus, Kept, LiveFacts]) -> None:
    bus, kept, known = snapped
    progress = RunProgress(
        run_id=next(iter(known.jobs)), team="nlp", attempt=1, rank=0, step=2, time_ms=2,
        metrics={},
    )  # fmt: skip
    envelope = Envelope("s", "/t", Scenario(0).now, progress.run_id, progress)
    bus.bus.writer().send(encode(envelope, topic=NAMES.name(Topic.PROGRESS)))
    with bus.tail(views(kept, every=0)) as tail:
        after = facts(tail)
    assert len(kept.held) > 1
    del kept.held[0]
    with capture_logs() as said, bus.tail(views(kept)) as tail:
        assert facts(tail) == after
    assert [entry["event"] for entry in said] == ["restored a snapshot"]


def test_a_job_that_was_forgotten_does_not_come_back(
    parts: list[list[tuple[str, Logged]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Live.__init__, "__defaults__", (1,))
    bus, kept = Bus(), Kept()
    with bus.tail(views(kept, every=0)) as tail:
        places = [place for topic in Topic for place in tail.places(topic)]
        for part in parts:
            bus.write(part)
            until(lambda: tail.ends(places) == bus.bus.end_offsets(places))
        known = facts(tail)
    submitted = {
        entry.event.job_id for _, entry in parts[0] if isinstance(entry.event, JobAdmitted)
    }
    assert submitted - known.jobs.keys(), "some were forgotten"
    with bus.tail(views(kept)) as tail:
        assert facts(tail) == known


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (lambda data: data[:-1], "not those that were written"),
        (lambda _: b"", "not those that were written"),
        (lambda _: pack(HEADER, [b"oops 1\n"]), "not a field of View"),
        (lambda _: pack(HEADER, [b"jobs [[1]]\n"]), "ValidationError"),
        (lambda _: pack(HEADER, []), "has no marks of logs"),
        (lambda _: pack(HEADER.model_copy(update={"format": 1}), []), "another format"),
        (
            lambda _: pack(HEADER.model_copy(update={"state": 99}), []),
            "its state format 99",
        ),
        (
            lambda _: pack(HEADER.model_copy(update={"form": "x"}), []),
            f"its state format {VERSION}",
        ),
        (lambda _: pack(HEADER.model_copy(update={"service": "quota"}), []), "another format"),
    ],
)
def test_one_that_does_not_hold_is_passed_over_for_an_older_one(
    snapped: tuple[Bus, Kept, LiveFacts], broken: Callable[[bytes], bytes], reason: str
) -> None:
    bus, kept, known = snapped
    kept.held.append(broken(kept.held[0]))
    with capture_logs() as said, bus.tail(views(kept)) as tail:
        assert facts(tail) == known
    assert [entry["event"] for entry in said] == ["snapshot skipped", "restored a snapshot"]
    assert reason in said[0]["reason"]


@pytest.mark.parametrize("seed", [5, 6])
def test_one_of_another_log_is_passed_over(
    snapped: tuple[Bus, Kept, LiveFacts], parts: list[list[tuple[str, Logged]]], seed: int
) -> None:
    _, kept, known = snapped
    other = Bus()
    other.write(parts[0][:100] if seed == 5 else logs(seed)[0] + logs(seed)[1])
    with capture_logs() as said, other.tail(views(kept, every=10**9)) as tail:
        assert facts(tail) != known
    assert "restored a snapshot" not in [entry["event"] for entry in said]
    wrong = "does not have its offset" if seed == 5 else "is another log"
    assert wrong in said[0]["reason"]


def test_a_store_that_is_away_costs_nothing_but_time(
    snapped: tuple[Bus, Kept, LiveFacts],
) -> None:
    bus, _, known = snapped
    with capture_logs() as said, bus.tail(views(Away(), every=10**9)) as tail:
        assert facts(tail) == known
    assert [entry["event"] for entry in said] == ["snapshots not read"]
