"""Reads all topics but metrics in one thread: folds the live model and wakes waiting requests.

1. Start: logs begin at the newest valid snapshot of the model (view_snapshot.py), or at their
   start. The states of deciders begin at their own snapshots (followed.py), and streams where
   tail_starts.py says.
2. Catch up: the gateway is ready once the reader is at the ends that it saw at the start.
3. Follow: keep the newest records of each partition in a ring, fold them, wake waiting requests
   and write snapshots.

One thread owns the reader; all other methods may be called from any thread. Readers use a view
(live_view.py), which later records do not change, so they hold no lock while they work. A view is
made after at most `_FOLDED_AT_ONCE` further records. Invalid records are skipped: their consumer
puts them into the DLQ. An error of the bus ends the thread, and so the process (crash-only).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog

from gangline_alerts.core.state import AlertState
from gangline_bus.codec import FromLaterError, UndecodableError, decode, record_time
from gangline_bus.poison import POISONED, trace_of
from gangline_bus.ports import Bus, BusUnavailable, Reader, Record, TopicPartition
from gangline_bus.snapshot import SnapshotStore
from gangline_bus.topics import TopicNames
from gangline_gateway import (
    alerts_state,
    pipelines_state,
    quota_state,
    registry_state,
    scheduling,
    studies_state,
)
from gangline_gateway.access_tokens import AccessTokens
from gangline_gateway.followed import Copies, Followed
from gangline_gateway.live import Live
from gangline_gateway.live_model import LiveJob
from gangline_gateway.live_view import LiveView
from gangline_gateway.on_demand import OnDemand
from gangline_gateway.processes import Processes
from gangline_gateway.progress_watch import ProgressWatch
from gangline_gateway.pulses import Pulses
from gangline_gateway.ring import Ring
from gangline_gateway.tail_starts import start_positions
from gangline_gateway.view_snapshot import Marks, ViewSnapshots
from gangline_pipelines.core.state import PipelineState
from gangline_registry.core.state import RegistryState
from gangline_schemas.catalog import Topic, catalog
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.access import AccessTokenSet
from gangline_schemas.events.parts import PartVitals
from gangline_schemas.events.progress import RunProgress
from gangline_schemas.events.steps import WorkerStep
from gangline_service.vitals import Vitals
from gangline_studies.core.state import StudyState

log = structlog.get_logger(__name__)
StateT = TypeVar("StateT")
ValueT = TypeVar("ValueT")

_BATCH = 1000
_FOLDED_AT_ONCE = 100
_POLL_S = 0.2
_IDLE_S = 0.005
_NODE_ID_CHARS = 63


class Behind(Exception):
    """The position is older than the ring's first record."""


class Tail:
    """The live model, the rings and the thread that fills them."""

    def __init__(
        self,
        bus: Bus,
        names: TopicNames,
        views: ViewSnapshots | None = None,
        snapshots: SnapshotStore | None = None,
        vitals: Vitals | None = None,
    ) -> None:
        """`views`: snapshots of the model; `snapshots`: the store of the deciders' snapshots.

        `vitals` gets what the reader has still to read.
        """
        self.processes = Processes()
        self.access_tokens = AccessTokens()
        self._vitals = vitals or Vitals()
        self.names = names
        self.bus = bus
        self._views = views
        self.ready = threading.Event()
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._live = Live()
        self._scheduling = scheduling.followed(snapshots)
        self._quota = quota_state.followed(snapshots)
        self._view = OnDemand(self._lock, self._copied)
        self._views_of: dict[Followed[Any], OnDemand[Any]] = {}
        self._alerts = self._view_of(alerts_state.followed(snapshots))
        self._studies = self._view_of(studies_state.followed(snapshots))
        self._pipelines = self._view_of(pipelines_state.followed(snapshots))
        self._registry = self._view_of(registry_state.followed(snapshots))
        self._followed: list[Followed[Any]] = [self._scheduling, self._quota, *self._views_of]
        self._folded = {names.name(each.log) for each in self._followed}
        self._rings: dict[TopicPartition, Ring] = {}
        self._pulses = Pulses()
        self._heartbeats = names.name(Topic.HEARTBEATS)
        self._steps = names.name(Topic.STEPS)
        self._watch = ProgressWatch()
        self._logs = {names.name(at) for at, entry in catalog().items() if entry.kind == "log"}
        self._marks = Marks({})
        self._since = 0
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def _view_of(self, followed: Followed[StateT]) -> OnDemand[Copies[StateT]]:
        view = self._views_of[followed] = OnDemand(self._lock, followed.copies)
        return view

    def start(self, beat: Callable[[], None] = lambda: None) -> None:
        """Finds the start positions, then reads in a thread. Raises BusError.

        `beat` is called regularly while a snapshot is read.
        """
        self._restore(beat)
        positions = start_positions(self.bus, self.names, self._followed, self._marks)
        self._rings = {place: Ring(at, at) for place, at in positions.items()}
        self._goal = self.bus.end_offsets(positions)
        self._records = sum(max(0, end - positions[at]) for at, end in self._goal.items())
        self._reader = self.bus.reader("tail")
        self._reader.assign(positions)
        self._thread.start()

    def progress(self) -> tuple[int, int]:
        """The number of records read of those that existed at the start, and their total."""
        with self._lock:
            left = sum(max(0, end - self._rings[at].end) for at, end in self._goal.items())
        return self._records - left, self._records

    def progress_silent_s(self) -> float:
        """Seconds for which steps came but no progress; 0 while progress is published."""
        return self._watch.silent_s(time.monotonic())

    def close(self) -> None:
        """Stops reading."""
        self.stopping.set()
        self._thread.join(5.0)

    def query(self, question: Callable[[LiveView], ValueT]) -> ValueT:
        """The answer from the current model."""
        return question(self.view())

    def view(self) -> LiveView:
        """The model and the followed states, with all records folded up to now."""
        return self._view.now()

    def job(self, job_id: str) -> LiveJob | None:
        """The newest row of one job, without the cost of a view."""
        with self._lock:
            return self._live.jobs.get(job_id)

    def alerts(self) -> Copies[AlertState]:
        """The state of the alerts service, with all records folded up to now."""
        return self._alerts.now()

    def studies(self) -> Copies[StudyState]:
        """The state of the studies service, with all records folded up to now."""
        return self._studies.now()

    def pipelines(self) -> Copies[PipelineState]:
        """The state of the pipelines service, with all records folded up to now."""
        return self._pipelines.now()

    def registry(self) -> Copies[RegistryState]:
        """The state of the registry, with all records folded up to now."""
        return self._registry.now()

    async def until(
        self, question: Callable[[LiveView], ValueT | None], timeout_s: float
    ) -> ValueT | None:
        """The first answer that is not None; None if there is none in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            news = self.news()
            answer = self.query(question)
            left_s = deadline - loop.time()
            if answer is not None or left_s <= 0:
                return answer
            await asyncio.wait([news], timeout=left_s)

    def news(self) -> asyncio.Future[None]:
        """Done when a record is read after this call; belongs to the running loop."""
        return self._pulses.next()

    def places(self, topic: Topic) -> list[TopicPartition]:
        """All partitions of a topic."""
        name = self.names.name(topic)
        return [place for place in sorted(self._rings) if place.topic == name]

    def starts(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets from which the rings have all records."""
        with self._lock:
            return {place: self._rings[place].start for place in places}

    def ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets after the last records that were read."""
        with self._lock:
            return {place: self._rings[place].end for place in places}

    def newest(self, place: TopicPartition, count: int) -> int:
        """The offset from which the ring has `count` records, or its start if it has fewer."""
        with self._lock:
            ring = self._rings[place]
            kept = ring.read(ring.start, ring.end - ring.start)
            return kept[-count].offset if len(kept) >= count else ring.start

    def read(
        self, positions: Mapping[TopicPartition, int], limit: int
    ) -> tuple[list[Record], dict[TopicPartition, int]]:
        """Up to `limit` records per partition, and the next positions. Raises Behind."""
        found: list[Record] = []
        after = dict(positions)
        with self._lock:
            for place, position in positions.items():
                ring = self._rings[place]
                if position < ring.start:
                    raise Behind
                records = ring.read(position, limit)
                found += records
                full = len(records) == limit
                after[place] = records[-1].offset + 1 if full else max(position, ring.end)
        return found, after

    def _restore(self, beat: Callable[[], None]) -> None:
        """Restores the deciders' states and the model from their newest valid snapshots."""
        for each in self._followed:
            each.restore(self.bus, self.names.places(self.bus, each.log), beat)
        logs = [topic for topic, entry in catalog().items() if entry.kind == "log"]
        places = [place for topic in logs for place in self.names.places(self.bus, topic)]
        view = self._views.restore(self.bus, places, beat) if self._views is not None else None
        with self._lock:
            if view is not None:
                self._live, self._marks = Live.of(view), Marks(view.marks)
            for copy in (self._view, *self._views_of.values()):
                copy.changed()

    def _copied(self) -> LiveView:
        return LiveView(self._live, self._scheduling.copies(), self._quota.copies())

    def _snapshot(self) -> None:
        """Writes a snapshot if one is due."""
        if self._views is None or not self._views.due(self._since):
            return
        self._since = 0
        with self._lock:
            facts, marks = self._live.facts(), self._marks.now()
        self._views.write(facts, marks)

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                records = _poll(self._reader)
                self._vitals.reads("tail", self._reader.behind)
                if records or not self.ready.is_set():
                    self._take(records, self._reader.positions())
                if not records:
                    self.stopping.wait(_IDLE_S)
        finally:
            self._reader.close()

    def _take(self, records: list[Record], positions: Mapping[TopicPartition, int]) -> None:
        decoded = [(record, *self._decoded(record)) for record in records]
        for start in range(0, len(decoded), _FOLDED_AT_ONCE):
            with self._lock:
                part = decoded[start : start + _FOLDED_AT_ONCE]
                for record, envelope, _ in part:
                    self._rings[record.place].add(record)
                    self._fold(record, envelope)
                for each in self._followed:
                    new = [
                        each.apply(record, envelope, whole=whole)
                        for record, envelope, whole in part
                    ]
                    if any(new) and each in self._views_of:
                        self._views_of[each].changed()
                self._view.changed()
        with self._lock:
            for place, position in positions.items():
                self._rings[place].reached(position)
        if not self.ready.is_set() and _reached(positions, self._goal):
            self.ready.set()
        self._pulses.wake()
        if self.ready.is_set():
            self._snapshot()

    def _decoded(self, record: Record) -> tuple[Envelope | None, bool]:
        """The event of a record, and whether this version knows the whole of it.

        None for heartbeats, steps and invalid events.
        """
        if record.topic in {self._heartbeats, self._steps}:
            return None, False
        return self._event(record)

    def _event(self, record: Record) -> tuple[Envelope | None, bool]:
        try:
            if record.topic in self._folded:
                with contextlib.suppress(FromLaterError):
                    return decode(record, own=True), True
            return decode(record), False
        except UndecodableError as error:
            log.debug(
                "record skipped", topic=record.topic, offset=record.offset, error=error.reason
            )
            return None, False

    def _fold(self, record: Record, envelope: Envelope | None) -> None:
        if record.topic == self._heartbeats:
            self._take_heartbeat(record)
            return
        self._watch_progress(record, envelope)
        if (envelope is not None and self._noted(envelope)) or not self._marks.passes(record):
            return
        self._since += record.topic in self._logs
        if envelope is None:
            return
        try:
            self._live.apply(envelope)
        except Exception as error:  # noqa: BLE001 - one bad event must not hide the others
            POISONED.add(1, {"service": "gateway", "topic": record.topic})
            where = {"topic": record.topic, "offset": record.offset}
            log.critical("poison record skipped", **where, trace=trace_of(error))

    def _noted(self, envelope: Envelope) -> bool:
        """Whether it is of a stream that is read from its start, which no snapshot has."""
        if isinstance(envelope.data, PartVitals):
            self.processes.take(envelope.data, envelope.time)
            return True
        if isinstance(envelope.data, AccessTokenSet):
            self.access_tokens.take(envelope.data)
            return True
        return False

    def _watch_progress(self, record: Record, envelope: Envelope | None) -> None:
        now_s = time.monotonic()
        if envelope is not None and isinstance(envelope.data, RunProgress):
            self._watch.answered(envelope.data, now_s)
        if record.topic != self._steps or not self.ready.is_set():
            return
        if not self._watch.wants_step(now_s):
            return
        step, _ = self._event(record)
        if step is not None and isinstance(step.data, WorkerStep):
            self._watch.stepped(step.data, now_s)

    def _take_heartbeat(self, record: Record) -> None:
        node_id = (record.key or b"").decode(errors="replace")[:_NODE_ID_CHARS]
        try:
            at = record_time(record.timestamp_ms)
        except UndecodableError:
            return
        self._live.take_heartbeat(node_id, at, record.value)


def _poll(reader: Reader) -> list[Record]:
    try:
        return reader.poll(_BATCH, _POLL_S)
    except BusUnavailable as error:
        log.warning("the bus is away", error=str(error))
        return []


def _reached(positions: Mapping[TopicPartition, int], goal: Mapping[TopicPartition, int]) -> bool:
    return all(positions.get(place, 0) >= end for place, end in goal.items())
