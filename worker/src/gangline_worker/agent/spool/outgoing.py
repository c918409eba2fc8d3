"""Sends the agent's records: events by two spools, heartbeats directly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import psutil
import structlog
from opentelemetry.metrics import Meter, Observation

from gangline_bus.codec import encode
from gangline_bus.ports import Bus, BusError, OutRecord, Writer
from gangline_bus.topics import TopicNames
from gangline_schemas.base import Event
from gangline_schemas.catalog import Topic, topic_of
from gangline_schemas.envelope import Envelope, derived_id
from gangline_schemas.events.heartbeats import GpuStatus, NodeHealth, NodeUse, WorkerHeartbeat
from gangline_schemas.events.logs import LogLine, WorkerLog
from gangline_schemas.events.metrics import MetricLogged
from gangline_schemas.mlflow_workspace import mlflow_run_id
from gangline_worker.agent.decide.effects import Publish
from gangline_worker.agent.decide.inputs import HeartbeatAcked
from gangline_worker.agent.decide.keys import GangKey, RankKey

from .sender import Sender
from .spool import Spool

log = structlog.get_logger(__name__)

_TELEMETRY = {Topic.STEPS, Topic.LOGS, Topic.METRICS}
_STATUS_AGE_S = 5.0
_CALM_S = 30.0
_GIB = 1024**3
_MEMORY_BYTES = 16 * 1024 * 1024
"""So much of control events is held while the disk takes none: some ten thousand."""


class _Trouble:
    """Says a trouble once when it begins, and once when it has not come for `_CALM_S`.

    A full disk takes a little now and then: what was sent is deleted. Any thread may call it.
    """

    def __init__(self, begun: str, over: str) -> None:
        self._begun, self._over = begun, over
        self._last_s: float | None = None
        self._lock = threading.Lock()

    def came(self, **details: object) -> None:
        """It is there."""
        with self._lock:
            logged, self._last_s = self._last_s is not None, time.monotonic()
        if not logged:
            log.error(self._begun, **details)

    def pass_time(self, **details: object) -> None:
        """Look whether it is over."""
        with self._lock:
            over = self._last_s is not None and time.monotonic() - self._last_s >= _CALM_S
            if over:
                self._last_s = None
        if over:
            log.warning(self._over, **details)


class _Reading(Protocol):
    @property
    def read_at(self) -> datetime: ...


ReadingT = TypeVar("ReadingT", bound=_Reading)


class News(Generic[ReadingT]):
    """Readings that go with heartbeats, each until one with it is on the bus."""

    def __init__(self, newest: Callable[[], ReadingT | None]) -> None:
        self._newest = newest
        self._sent_at: datetime | None = None

    def unsent(self) -> ReadingT | None:
        """The newest one, unless it was sent."""
        newest = self._newest()
        return None if newest is None or newest.read_at == self._sent_at else newest

    def sent(self, reading: ReadingT | None) -> None:
        """The bus has it."""
        if reading is not None:
            self._sent_at = reading.read_at


class Outgoing:
    """Publishes events at least once, with ids that are the same each time.

    Control events (started, exited, shards, joined) are synced to disk and never dropped; while
    the disk takes none they are held in memory. Steps and logs share `limit_bytes`, the oldest go
    first, and those that the disk does not take are lost. `publish_log` may be called by any
    thread.
    """

    def __init__(
        self,
        folder: Path,
        node_id: str,
        names: TopicNames,
        connect: Callable[[str], Bus],
        *,
        limit_bytes: int,
        gpus: Callable[[], tuple[GpuStatus, ...]],
        health: Callable[[], NodeHealth | None],
        use: Callable[[], NodeUse | None],
        meter: Meter,
    ) -> None:
        self._node_id = node_id
        self._names = names
        self._connect = connect
        self._gpus = gpus
        self._healths, self._uses = News(health), News(use)
        self._control = Spool(folder / "control", sync=True, memory_bytes=_MEMORY_BYTES)
        self._telemetry = Spool(folder / "telemetry", sync=False, limit_bytes=limit_bytes)
        self._senders = (
            Sender("control", self._control, lambda: connect("control").writer(), droppable=False),
            Sender(
                "telemetry", self._telemetry, lambda: connect("telemetry").writer(), droppable=True
            ),
        )
        self._heartbeats: Writer | None = None
        self._status: WorkerHeartbeat | None = None
        self._status_at_s = 0.0
        self._holding = _Trouble("spool.held_in_memory", "spool.on_disk_again")
        self._losing = _Trouble("spool.not_written", "spool.written_again")
        self._lost = 0
        self._measure(meter)

    def _measure(self, meter: Meter) -> None:
        meter.create_observable_gauge(
            "gangline.agent.spool.memory",
            [lambda _: [Observation(self._control.held_bytes)]],
            unit="By",
            description="Bytes of control events in memory alone, because the disk takes no writes",
        )
        meter.create_observable_counter(
            "gangline.agent.spool.lost",
            [lambda _: [Observation(self._lost)]],
            description="Batches of steps and log lines that the disk did not take",
        )

    def start(self) -> None:
        """Begin to send, first what an earlier agent left in the spools."""
        for sender in self._senders:
            sender.start()
        self._heartbeats = self._connect("heartbeats").writer()

    def publish(self, item: Publish, at: datetime) -> None:
        """Spool an event. Raises OSError when a control event can be neither written nor held."""
        event_id = derived_id(item.event.type, *item.identity)
        self._spool(topic_of(item.event.type), item.subject, item.event, event_id, at)

    def send_once(self, item: Publish, at: datetime) -> None:
        """Send an event past the spools; it is lost when the bus is away."""
        event_id = derived_id(item.event.type, *item.identity)
        topic = topic_of(item.event.type)
        self._send(self._record(topic, item.subject, item.event, event_id, at), lambda _: None)

    def publish_log(
        self, rank: RankKey, team: str, first_line: int, lines: tuple[LogLine, ...]
    ) -> None:
        """Spool lines of a rank."""
        gang: GangKey = rank.gang
        event = WorkerLog(
            job_id=gang.job_id,
            team=team,
            attempt=gang.attempt,
            rank=rank.rank,
            node_id=self._node_id,
            first_line=first_line,
            lines=lines,
        )
        event_id = derived_id(event.type, gang.job_id, gang.attempt, rank.rank, first_line)
        self._spool(Topic.LOGS, gang.job_id, event, event_id, datetime.now(UTC))

    def publish_points(
        self, job_id: str, team: str, time_ms: int, values: Sequence[tuple[str, float]]
    ) -> None:
        """Spool metrics of a job's MLflow run at this Unix time. Any thread may call it."""
        run_id = mlflow_run_id(job_id)
        names = tuple(name for name, _ in values)
        event = MetricLogged(
            run_id=run_id,
            team=team,
            name=names,
            step=(time_ms // 1000,) * len(names),
            time_ms=(time_ms,) * len(names),
            value=tuple(value for _, value in values),
        )
        event_id = derived_id(event.type, run_id, self._node_id, time_ms)
        self._spool(Topic.METRICS, run_id, event, event_id, datetime.now(UTC))

    def heartbeat(
        self, event: WorkerHeartbeat, at_s: float, acked: Callable[[HeartbeatAcked], None]
    ) -> None:
        """Send a heartbeat once; `acked` is called from another thread when the bus has it."""
        self._control.save()
        if self._control.held_bytes:
            self._holding.came(error=self._control.trouble)
        self._holding.pass_time()
        self._losing.pass_time(lost=self._lost)
        health, use = self._healths.unsent(), self._uses.unsent()
        full = event.model_copy(update={**self._load(at_s), "health": health, "use": use})

        def delivered(error: BusError | None) -> None:
            if error is None:
                self._healths.sent(health)
                self._uses.sent(use)
                acked(HeartbeatAcked(event.incarnation, at_s))

        record = self._record(
            Topic.HEARTBEATS,
            self._node_id,
            full,
            derived_id(event.type, event.incarnation, event.sequence),
            event.sent_at,
        )
        self._send(record, delivered)

    def _send(self, record: OutRecord, delivered: Callable[[BusError | None], None]) -> None:
        if self._heartbeats is None:
            return
        try:
            self._heartbeats.send(record, delivered)
        except BusError as error:
            log.debug("record.not_sent", topic=record.topic, error=str(error))

    def unsaved(self) -> bytes:
        """After `close`: control events that are neither on the disk nor on the bus."""
        return self._control.unsaved()

    def adopt(self, unsaved: bytes) -> None:
        """Before `start`: take up what another program of this process had in memory alone."""
        self._control.adopt(unsaved)

    def close(self, timeout_s: float) -> None:
        """Send what is left for a while; the rest stays on disk for the next agent."""
        ends_s = time.monotonic() + timeout_s
        for sender in self._senders:
            sender.drain(max(0.1, ends_s - time.monotonic()))
        for sender in self._senders:
            sender.stop()
        if self._heartbeats is not None:
            self._heartbeats.flush(0.5)
        for spool in (self._control, self._telemetry):
            spool.close()

    def _load(self, at_s: float) -> dict[str, object]:
        if self._status is None or at_s - self._status_at_s >= _STATUS_AGE_S:
            self._status_at_s = at_s
            self._status = WorkerHeartbeat(
                node_id=self._node_id,
                incarnation="status",
                sequence=0,
                sent_at=datetime.now(UTC),
                gpus=self._gpus(),
                cpu_percent=psutil.cpu_percent(),
                memory_used_gb=psutil.virtual_memory().used / _GIB,
            )
        status = self._status
        return {
            "gpus": status.gpus,
            "cpu_percent": status.cpu_percent,
            "memory_used_gb": status.memory_used_gb,
        }

    def _spool(self, topic: Topic, subject: str, event: Event, event_id: str, at: datetime) -> None:
        record = self._record(topic, subject, event, event_id, at)
        if topic not in _TELEMETRY:
            self._control.append(record)
            if self._control.held_bytes:
                self._holding.came(error=self._control.trouble)
            return
        try:
            self._telemetry.append(record)
        except OSError as error:  # a full disk must not end the ranks
            self._lost += 1
            self._losing.came(topic=topic.value, error=error.strerror)

    def _record(
        self, topic: Topic, subject: str, event: Event, event_id: str, at: datetime
    ) -> OutRecord:
        envelope = Envelope(
            id=event_id,
            source=f"/gangline/agent/{self._node_id}",
            time=at,
            subject=subject,
            data=event,
        )
        return encode(envelope, topic=self._names.name(topic))
