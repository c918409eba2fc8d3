"""A takeover from a log of 1,000,000 events: from a snapshot and the tail, and from nothing.

The log is the scheduler's: rounds of 60 jobs that wait, start on 100 nodes x 8 GPUs, report all
ranks and end. The scheduler decides them once; they are repeated with other ids, after 2,000 jobs
that wait all the time. Records are made while they are read, so a broker's share of a takeover is
not in the figures, and the making is. The snapshot also remembers the last 100,000 ended jobs.

- `fold_snapshot_tail_s`: the newest snapshot and the tail of 20,000 events (`snapshot_every`),
  as a standby does it: read, checked, folded, the invariants too.
- `fold_from_start_us`: an event, without a snapshot.
- `snapshot_copy_ms`: what the leader's cycle waits for a snapshot; `snapshot_write_s`: the thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from harness import Context, Result

from gangline_bus.codec import Received, encode
from gangline_bus.fold import Folded, fold_log, fold_record
from gangline_bus.ports import OutRecord, Record, TopicPartition
from gangline_bus.snapshot import EVERY, FORMAT, SnapshotHeader, Snapshots, pack
from gangline_scheduler.core.decide import Scheduler
from gangline_scheduler.core.snapshot import codec, fingerprint
from gangline_schemas.base import Event
from gangline_schemas.envelope import Envelope, LogPosition
from gangline_schemas.events.quota import JobAdmitted, TeamConfigured
from gangline_schemas.events.workers import (
    ExitReason,
    NodeInfo,
    NodeJoined,
    WorkerExited,
    WorkerStarted,
)
from gangline_schemas.job import JobSpec
from gangline_schemas.team_limits import TeamConfig
from support.builders.gangs import node_info

EVENTS = 1_000_000
NODES, GPUS = 100, 8
ROUND_JOBS, WAITING_JOBS = 60, 2_000
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
PLACE = TopicPartition("gangline.scheduling", 0)
JOB = "job-{:07d}"


@dataclass
class Log:
    """`first` once, then `repeated` for ever: a round's jobs get other ids each time."""

    first: list[OutRecord]
    repeated: list[OutRecord]
    ids: list[bytes]

    def read(self, offset: int, count: int) -> list[Record]:
        """Records with their place in the log."""
        return [self._record(seq) for seq in range(offset, offset + count)]

    def _record(self, seq: int) -> Record:
        if seq < len(self.first):
            return _at(self.first[seq], seq, self.first[seq].value)
        number, at = divmod(seq - len(self.first), len(self.repeated))
        out = self.repeated[at]
        old = self.ids[at]
        new = b"job-%07d" % (int(old[4:]) + (number + 1) * ROUND_JOBS)
        return _at(out, seq, out.value.replace(old, new))


def _at(out: OutRecord, seq: int, value: bytes) -> Record:
    headers = (*out.headers[:-1], ("ce_ganglineseq", b"%d" % seq))
    return Record(PLACE.topic, 0, seq, out.key, value, headers, 0)


@dataclass
class Reader:
    """`ports.Reader` over the log."""

    log: Log
    end: int
    at: int = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.at = positions[PLACE]

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        found = self.log.read(self.at, min(max_records, self.end - self.at))
        self.at += len(found)
        return found

    def positions(self) -> dict[TopicPartition, int]:
        return {PLACE: self.at}

    def close(self) -> None: ...


@dataclass
class LogBus:
    """As much of `ports.Bus` as a fold needs."""

    log: Log
    end: int

    def start_offsets(self, places: object) -> dict[TopicPartition, int]:
        return {PLACE: 0}

    def end_offsets(self, places: object) -> dict[TopicPartition, int]:
        return {PLACE: self.end}

    def reader(self, name: str, *, patient: bool = False) -> Reader:
        return Reader(self.log, self.end)


@dataclass
class Kept:
    """`SnapshotStore` in memory."""

    held: list[bytes] = field(default_factory=list)

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        return iter(self.held)

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        self.held.append(data)


class Writer:
    """Lets the scheduler decide and keeps what it would write."""

    def __init__(self) -> None:
        self.decider = Scheduler()
        self.state = self.decider.initial()
        self.out: list[OutRecord] = []
        self.now = START
        self._inputs = 0

    def give(self, event: Event) -> None:
        self._inputs += 1
        envelope = Envelope(f"in-{self._inputs}", "/bench", self.now, "s", event)
        received = Received(envelope, "t", 0, self._inputs)
        for decision in list(self.decider.decide(self.state, None, received, self.now)):
            self.state = self.decider.evolve(self.state, decision, self.now)
            position = LogPosition(0, 1, len(self.out))
            written = Envelope(
                f"e{len(self.out)}",
                "/gangline/scheduler/bench",
                self.now,
                decision.subject,
                decision.event,
                position=position,
            )
            self.out.append(encode(written, topic=PLACE.topic, key="0", partition=0))

    def submit(self, number: int, team: str, gpus: int) -> str:
        job_id = JOB.format(number)
        resources = {"gpus": gpus}
        spec = JobSpec.model_validate(
            {
                "name": "train",
                "team": team,
                "command": ["python", "-m", "train", "--config", "train.yaml"],
                "hyperparameters": {"lr": 3e-4, "layers": 24},
                "env": {"NCCL_DEBUG": "WARN"},
                "resources": resources,
            }
        )
        self.give(JobAdmitted(job_id=job_id, spec=spec, user="ada", submitted_at=self.now))
        return job_id


def make_log() -> Log:
    """Decide the first part and one round."""
    writer = Writer()
    for name, limit in (("nlp", NODES * GPUS), ("closed", 0)):
        writer.give(TeamConfigured(config=TeamConfig(team=name, gpu_limit=limit)))
    for index in range(NODES):
        writer.give(NodeJoined(node=_node(index)))
    for number in range(WAITING_JOBS):
        writer.submit(5_000_000 + number, "closed", 8)
    first, writer.out = writer.out, []
    for number in range(ROUND_JOBS):
        job_id = writer.submit(number, "nlp", (1, 2, 4, 8)[number % 4])
        writer.now += timedelta(seconds=1)
        gang = writer.state.jobs[job_id].gang
        assert gang is not None, "the round's jobs start at once"
        report = {"job_id": job_id, "attempt": 1, "node_id": "node-0", "incarnation": "1"}
        for rank in range(gang.world_size):
            writer.give(WorkerStarted.model_validate({**report, "rank": rank, "pid": 1}))
    for number in range(ROUND_JOBS):
        job_id = JOB.format(number)
        report = {"job_id": job_id, "attempt": 1, "node_id": "node-0", "incarnation": "1"}
        writer.now += timedelta(seconds=1)
        for rank in range((1, 2, 4, 8)[number % 4]):
            writer.give(
                WorkerExited.model_validate({**report, "rank": rank, "reason": ExitReason.FINISHED})
            )
    assert not writer.state.live, "a round leaves nothing behind"
    repeated = [out for out in writer.out if b"job-50" not in out.value]
    ids = [_id(out) for out in repeated]
    return Log(first, repeated, ids)


def _id(out: OutRecord) -> bytes:
    at = out.value.index(b"job-")
    return out.value[at : at + 11]


def _node(index: int) -> NodeInfo:
    ports = tuple(range(29_500, 29_564))
    return node_info(f"node-{index}", GPUS, rack=f"rack-{index // 8}", rendezvous_ports=ports)


def take_snapshot(folded: Folded[Any], kept: Kept) -> tuple[float, float, int]:
    """Seconds of the copy, of the rest, and bytes."""
    state_codec = codec(Scheduler().initial)
    header = SnapshotHeader(
        format=FORMAT,
        state=state_codec.version,
        form=state_codec.form,
        service="scheduler",
        shard=0,
        next_seq=folded.next_seq,
        writer_epoch=folded.writer_epoch,
        offset=folded.next_seq - 1,
        last=folded.last,
    )
    started = time.perf_counter()
    facts = state_codec.copy(folded.state)
    copied_s = time.perf_counter() - started
    started = time.perf_counter()
    data = pack(header, state_codec.dump(facts))
    written_s = time.perf_counter() - started
    kept.put(header, data)
    return copied_s, written_s, len(data)


def run(context: Context) -> list[Result]:
    """Fold all but the tail once, then take over from the snapshot, some times."""
    events = EVENTS // 10 if context.quick else EVENTS
    log = make_log()
    started = time.process_time()
    folded: Folded[Any] = fold_log(LogBus(log, events - EVERY), Scheduler(), PLACE)  # type: ignore[arg-type]
    each_us = (time.process_time() - started) / folded.next_seq * 1e6
    context.say(f"{folded.next_seq:,} events folded, {each_us:.1f} us of CPU each")
    kept = Kept()
    copied_s, written_s, size = take_snapshot(folded, kept)
    taken, used, bus = [], [], LogBus(log, events)
    for _ in range(context.repeats(3)):
        snapshots = Snapshots(kept, codec(Scheduler().initial))
        started, cpu = time.perf_counter(), time.process_time()
        heir = snapshots.restore(bus, Scheduler(), PLACE)  # type: ignore[arg-type]
        taken.append(time.perf_counter() - started)
        used.append(time.process_time() - cpu)
        assert heir is not None, "the snapshot was passed over"
        assert heir.next_seq == events
        context.say(f"snapshot and tail: {taken[-1]:.2f} s")
    decider = Scheduler()
    for record in log.read(folded.next_seq, EVERY):
        fold_record(decider, folded, record)
    assert fingerprint(heir.state) == fingerprint(folded.state), "they differ"
    ended = len(folded.state.ended)
    note = f"{events:,} events, {ended:,} ended jobs, {size / 1e6:.1f} MB"
    return [
        context.median("fold_snapshot_tail_s", taken, "s", note=note),
        context.median("fold_snapshot_tail_cpu_s", used, "s"),
        context.result("fold_from_start_us", each_us, "us"),
        context.result("snapshot_copy_ms", copied_s * 1000, "ms"),
        context.result("snapshot_write_s", written_s, "s"),
    ]
