"""Records of simulated nodes, written as text: 2,000 heartbeats a second must cost little.

`tests/unit/load/test_fleet.py` reads them back as the services do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gangline_bus.ports import OutRecord
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.events.scheduling import GangAllocated

GPUS = 8
NODES_PER_RACK, RACKS_PER_BLOCK = 16, 8
HEALTH_EVERY = 10
"""Beats; agents send a reading of the node's health so often."""
METRICS = ("loss", "grad_norm", "lr", "tokens_per_s")
NAMES = TopicNames()


def stamp(at_s: float | None = None) -> str:
    """A time as events have it."""
    at = datetime.fromtimestamp(time.time() if at_s is None else at_s, UTC)
    return at.isoformat().replace("+00:00", "Z")


def record(
    topic: Topic, kind: str, event_id: str, source: str, subject: str, value: str
) -> OutRecord:
    """A CloudEvent with this JSON."""
    headers = (
        ("ce_specversion", b"1.0"), ("ce_id", event_id.encode()),
        ("ce_source", f"/gangline/agent/{source}".encode()), ("ce_type", kind.encode()),
        ("ce_subject", subject.encode()), ("ce_time", stamp().encode()),
        ("content-type", b"application/json"),
    )  # fmt: skip
    return OutRecord(NAMES.name(topic), subject.encode(), value.encode(), headers)


@dataclass
class Gang:
    """The part of a gang on one node."""

    job_id: str
    attempt: int
    team: str
    ranks: range
    step: int = 0
    lines: int = 0

    @property
    def leads(self) -> bool:
        """Whether rank 0 is here; it alone reports steps and lines."""
        return self.ranks.start == 0

    def status(self) -> str:
        """Of a heartbeat. All ranks train."""
        ranks = ",".join(
            f'{{"rank":{rank},"pid":{1000 + rank},"step":{self.step},"activity":"training",'
            '"quiet_s":0.4,"step_p99_s":1.2,"busy_s":0.9}'
            for rank in self.ranks
        )
        return f'{{"job_id":"{self.job_id}","attempt":{self.attempt},"ranks":[{ranks}]}}'


@dataclass
class SimulatedNode:
    """One node. A new incarnation forgets its gangs, as an agent that starts from scratch."""

    number: int
    incarnation: int = 0
    sequence: int = 0
    gangs: dict[tuple[str, int], Gang] = field(default_factory=dict)

    @property
    def node_id(self) -> str:
        """Its name."""
        return f"sim-{self.number}"

    @property
    def life(self) -> str:
        """Its incarnation, as events name it."""
        return f"{self.node_id}-{self.incarnation}"

    def joined(self) -> OutRecord:
        """It offers its GPUs."""
        rack = self.number // NODES_PER_RACK
        block = f"block-{rack // RACKS_PER_BLOCK}"
        info = {
            "node_id": self.node_id, "incarnation": self.life, "address": "127.0.0.1",
            "hostname": self.node_id, "rack": f"rack-{rack}", "block": block,
            "gpus": [{"index": n, "model": "h100", "memory_gb": 80} for n in range(GPUS)],
            "cpus": 128, "memory_gb": 2048, "rendezvous_ports": [20000, 20001, 20002, 20003],
        }  # fmt: skip
        return record(
            Topic.WORKERS, "node.joined", f"{self.life}-joined", self.node_id, self.node_id,
            json.dumps({"node": info}),
        )  # fmt: skip

    def beat(self) -> OutRecord:
        """A heartbeat with all ranks and GPUs."""
        self.sequence += 1
        gangs = ",".join(gang.status() for gang in self.gangs.values())
        now = stamp()
        health = _HEALTH.replace("NOW", now) if self.sequence % HEALTH_EVERY == 1 else "null"
        value = (
            f'{{"node_id":"{self.node_id}","incarnation":"{self.life}",'
            f'"sequence":{self.sequence},"sent_at":"{now}","gangs":[{gangs}],"gpus":{_USE},'
            f'"cpu_percent":12.0,"memory_used_gb":300.0,"health":{health}}}'
        )
        event_id = f"{self.life}-{self.sequence}"
        return record(
            Topic.HEARTBEATS, "worker.heartbeat", event_id, self.node_id, self.node_id, value
        )

    def start(self, allocation: GangAllocated) -> list[OutRecord]:
        """Its ranks of a gang start at once; [] if it has none, or none of this life."""
        for node in allocation.nodes:
            if node.node_id == self.node_id and node.incarnation == self.life:
                gang = Gang(allocation.job_id, allocation.attempt, allocation.team, node.ranks)
                self.gangs[allocation.job_id, allocation.attempt] = gang
                return [self._rank(gang, "worker.started", rank) for rank in gang.ranks]
        return []

    def end(self, key: tuple[str, int], reason: str) -> list[OutRecord]:
        """Its ranks of the gang exit."""
        gang = self.gangs.pop(key, None)
        if gang is None:
            return []
        code = 0 if reason == "finished" else None
        return [
            self._rank(gang, "worker.exited", rank, reason=reason, exit_code=code,
                       signal=None if code == 0 else 15)
            for rank in gang.ranks
        ]  # fmt: skip

    def report(self, gang: Gang, points: int, lines: int) -> Iterable[OutRecord]:
        """A second of its rank 0: so many points in columns, and so many lines."""
        count = max(1, points // len(METRICS))
        now_ms = int(time.time() * 1000)
        steps = ",".join(map(str, range(gang.step, gang.step + count)))
        times = ",".join([str(now_ms)] * count)
        column = ",".join(["2.5"] * count)
        metrics = ",".join(f'"{name}":[{column}]' for name in METRICS)
        common = f'"team":"{gang.team}","attempt":{gang.attempt},"rank":0'
        source = f"{self.life}-{gang.job_id}-{gang.attempt}"
        if points:
            yield record(
                Topic.STEPS, "worker.step", f"{source}-s{gang.step}", self.node_id, gang.job_id,
                f'{{"run_id":"{gang.job_id}",{common},"step":[{steps}],"time_ms":[{times}],'
                f'"metrics":{{{metrics}}}}}',
            )  # fmt: skip
            gang.step += count
        if lines:
            text = ",".join(
                f'{{"time_ms":{now_ms},"stream":"stdout","text":"step {gang.step} loss 2.5 {n}"}}'
                for n in range(lines)
            )
            yield record(
                Topic.LOGS, "worker.log", f"{source}-l{gang.lines}", self.node_id, gang.job_id,
                f'{{"job_id":"{gang.job_id}",{common},"node_id":"{self.node_id}",'
                f'"first_line":{gang.lines},"lines":[{text}]}}',
            )  # fmt: skip
            gang.lines += lines

    def renew(self) -> OutRecord:
        """Its agent starts from scratch."""
        self.incarnation += 1
        self.sequence = 0
        self.gangs.clear()
        return self.joined()

    def _rank(self, gang: Gang, kind: str, rank: int, **more: object) -> OutRecord:
        value = {
            "job_id": gang.job_id, "attempt": gang.attempt, "rank": rank,
            "node_id": self.node_id, "incarnation": self.life, **more,
        }  # fmt: skip
        if kind == "worker.started":
            value["pid"] = 1000 + rank
        event_id = f"{self.life}-{gang.job_id}-{gang.attempt}-{rank}-{kind}"
        return record(Topic.WORKERS, kind, event_id, self.node_id, gang.job_id, json.dumps(value))


_USE = json.dumps(
    [
        {"index": n, "utilization": 98.0, "memory_used_gb": 70.1, "temperature_c": 61.0}
        for n in range(GPUS)
    ],
    separators=(",", ":"),
)
_HEALTH = json.dumps(
    {
        "read_at": "NOW",
        "gpus": [
            {"index": n, "temperature_c": 61.0, "slowdown_c": 90.0, "ecc_corrected": 0,
             "ecc_uncorrected": 0, "nvlink_errors": 0} for n in range(GPUS)
        ],
        "disk_free_gb": 1000.0, "disk_write_s": 0.001, "memory_available_gb": 900.0,
        "clock_synced": True, "clock_error_s": 0.001,
    },
    separators=(",", ":"),
)  # fmt: skip
