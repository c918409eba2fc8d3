"""`python -m load.fleet SETTINGS`: simulated nodes in a process of their own.

They join, beat, start the ranks of each gang that the scheduler places on them, report steps and
lines, and end each job after the seconds that its hyperparameters name.

Orders are lines of its stdin: `renew` (all agents start from scratch), `lose FIRST LAST` (those
nodes are gone), `quiet` (no more steps and lines), `end`. Then it writes its account as JSON.
"""

from __future__ import annotations

import heapq
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from queue import Empty, SimpleQueue

from gangline_bus.codec import UndecodableError, decode
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusError, BusUnavailable, OutRecord, Record
from gangline_schemas.catalog import Topic
from load.nodes import METRICS, NAMES, Gang, SimulatedNode

TURN_S = 0.05
REPORT_S = 1.0
FLUSH_S = 60.0
CONCERNS = (b"gang.allocated", b"gang.stopping", b"gang.released")


@dataclass(frozen=True)
class FleetSettings:
    """Of one process: it has the nodes `first` to `last`, without the latter."""

    bootstrap: str
    first: int
    last: int
    beat_s: float
    points: int
    """Of each job, a second; the metrics of whole steps."""
    lines: int


@dataclass
class Account:
    """What the fleet sent and the bus acknowledged."""

    beats: int = 0
    points: int = 0
    lines: int = 0
    refused: int = 0
    """Records that the bus did not take."""
    late_s: list[float] = field(default_factory=list)
    """How late turns began: the fleet's own lateness, its worst 100 values."""
    started: int = 0
    cpu_s: float = 0.0


class Fleet:
    """The nodes of one process, in one thread."""

    def __init__(self, settings: FleetSettings) -> None:
        self.settings = settings
        self.account = Account()
        self.nodes = {
            node.node_id: node for node in map(SimulatedNode, range(settings.first, settings.last))
        }
        self._order = list(self.nodes.values())
        self._bus = KafkaBus(
            settings.bootstrap, client=f"fleet-{settings.first}",
            settings={"queue.buffering.max.messages": "1000000", "message.timeout.ms": "300000"},
        )  # fmt: skip
        self._writer = self._bus.writer()
        self._reader = self._bus.reader("fleet")
        places = NAMES.places(self._bus, Topic.SCHEDULING)
        self._reader.assign(self._bus.end_offsets(places))
        self._orders: SimpleQueue[str] = SimpleQueue()
        self._leaders: dict[tuple[str, int], SimulatedNode] = {}
        self._due: list[tuple[float, tuple[str, int]]] = []
        self._members: dict[tuple[str, int], list[SimulatedNode]] = {}
        self._waiting: deque[OutRecord] = deque()
        self._quiet = False

    def run(self) -> Account:
        """Until `end`."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._send(node.joined() for node in self._order)
        began, turn, reported = time.monotonic(), 0, 0.0
        turns = max(1, round(self.settings.beat_s / TURN_S))
        while not self._obeyed():
            due = began + turn * TURN_S
            now = time.monotonic()
            if now < due:
                self._read(due - now)
                continue
            self._late(now - due)
            self._send(node.beat() for node in self._order[turn % turns :: turns])
            self._end_jobs(now)
            if now - reported >= REPORT_S and not self._quiet:
                reported = now
                self._report()
            turn += 1
        self._writer.flush(FLUSH_S)
        return self.account

    def _obeyed(self) -> bool:
        """Do what was ordered; True at the end."""
        try:
            order = self._orders.get_nowait().split()
        except Empty:
            return False
        if order[0] == "renew":
            self._members.clear()
            self._leaders.clear()
            self._send(node.renew() for node in self._order)
        elif order[0] == "lose":
            gone = range(int(order[1]), int(order[2]))
            self._order = [node for node in self._order if node.number not in gone]
            for number in gone:
                self.nodes.pop(f"sim-{number}", None)
            self._leaders = {k: n for k, n in self._leaders.items() if n.number not in gone}
        elif order[0] == "quiet":
            self._quiet = True
        return order[0] == "end"

    def _listen(self) -> None:
        for line in sys.stdin:
            self._orders.put(line)

    def _read(self, timeout_s: float) -> None:
        try:
            records = self._reader.poll(500, timeout_s)
        except BusError:
            time.sleep(timeout_s)
            return
        for found in records:
            if dict(found.headers).get("ce_type") in CONCERNS:
                self._take(found)

    def _take(self, found: Record) -> None:
        try:
            event = decode(found).data
        except UndecodableError:
            return
        key = (event.job_id, event.attempt)  # type: ignore[attr-defined]
        if event.type == "gang.allocated":
            mine = [self.nodes[n.node_id] for n in event.nodes if n.node_id in self.nodes]  # type: ignore[attr-defined]
            for node in mine:
                self._send(node.start(event))  # type: ignore[arg-type]
            self._members[key] = [node for node in mine if key in node.gangs]
            for node in self._members[key]:
                if node.gangs[key].leads:
                    self._leaders[key] = node
                    self.account.started += 1
            seconds = event.spec.hyperparameters.get("seconds", 60)  # type: ignore[attr-defined]
            heapq.heappush(self._due, (time.monotonic() + float(seconds), key))
        else:
            self._end(key, "stopped")

    def _end_jobs(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            self._end(heapq.heappop(self._due)[1], "finished")

    def _end(self, key: tuple[str, int], reason: str) -> None:
        self._leaders.pop(key, None)
        for node in self._members.pop(key, ()):
            self._send(node.end(key, reason))

    def _report(self) -> None:
        for key, node in self._leaders.items():
            gang: Gang | None = node.gangs.get(key)
            if gang is not None:
                self._send(node.report(gang, self.settings.points, self.settings.lines))

    def _send(self, records: Iterable[OutRecord]) -> None:
        self._waiting.extend(records)
        while self._waiting:
            item = self._waiting[0]
            try:
                self._writer.send(item, _Noted(self, item))
            except BusUnavailable:  # the queue is full while the bus is away
                return
            self._waiting.popleft()

    def _late(self, late_s: float) -> None:
        self.account.late_s.append(round(late_s, 3))
        if len(self.account.late_s) > 1000:
            self.account.late_s = sorted(self.account.late_s)[-100:]

    def delivered(self, item: OutRecord, error: BusError | None) -> None:
        """The bus took it, or did not. Called by the client's thread."""
        counted = self.account
        if error is not None:
            counted.refused += 1
        elif item.topic == NAMES.name(Topic.HEARTBEATS):
            counted.beats += 1
        elif item.topic == NAMES.name(Topic.STEPS):
            steps = max(1, self.settings.points // len(METRICS))
            counted.points += steps * len(METRICS)
        elif item.topic == NAMES.name(Topic.LOGS):
            counted.lines += self.settings.lines


class _Noted:
    """Counts a record once it is delivered."""

    __slots__ = ("_fleet", "_item")

    def __init__(self, fleet: Fleet, item: OutRecord) -> None:
        self._fleet, self._item = fleet, item

    def __call__(self, error: BusError | None) -> None:
        self._fleet.delivered(self._item, error)


def main() -> None:
    """One process of the fleet."""
    settings = FleetSettings(**json.loads(sys.argv[1]))
    account = Fleet(settings).run()
    account.late_s = sorted(account.late_s)[-100:]
    account.cpu_s = time.process_time()
    print(json.dumps(asdict(account)), flush=True)


if __name__ == "__main__":
    main()
