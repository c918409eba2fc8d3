"""Points on their way: to Kafka, into `latest_metrics`, and when a reader finds them.

1. `send` sends points to gangline.metrics, and those of a trial's objective to gangline.trials.
   Its future is done when all replicas have them; only then does the client get its answer, and its
   points are among the newest values.
2. `follow` reads the topic in a thread: points of others, of earlier processes, and how far the own
   ones are. `flush` writes the newest value of each metric to SQL, in one transaction with the
   offsets behind them. So a process that was killed continues where SQL stands, and loses no point
   and counts none twice.
3. The tracker reads the same topic into ClickHouse.

Readers wait for the points that this process acknowledged: `settle_latest` until SQL has them,
`settle_history` until ClickHouse has. Nothing is waited for when nothing is on its way.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple, cast

import structlog

from gangline_bus.codec import UndecodableError, encode, receive
from gangline_bus.ports import BusError, Record, TopicPartition
from gangline_mlflow.database import DatabaseAway, patiently
from gangline_mlflow.latest import Latest, LatestTable, keep_newer
from gangline_mlflow.parts import Parts
from gangline_mlflow.patience import bounds
from gangline_mlflow.plain import Point
from gangline_mlflow.skipping import skipping
from gangline_mlflow.trial_points import TrialPoints
from gangline_mlflow.values import published
from gangline_schemas.catalog import Topic
from gangline_schemas.envelope import Envelope
from gangline_schemas.events.metrics import MetricLogged, MetricsRemoved, TagsLogged
from gangline_schemas.events.trials import TrialLogged, TrialLogsEnded
from gangline_schemas.mlflow_workspace import team_of

log = structlog.get_logger(__name__)

SOURCE = "gangline/mlflow"
SETTLE_S = 15.0
_FLUSH_EVERY_S = 1.0
_ANALYZE_EVERY_S = 60.0
_POLL_S = 0.2
_RECORDS = 2_000
_RUNS_KEPT = 10_000
_VALUES_KEPT = 100_000


class _Sent(NamedTuple):
    run_id: str
    event: MetricLogged | None
    """None: it has no points, or they are among the newest values already."""


class NotSettledError(Exception):
    """Points that were accepted are not readable in time."""


class Points:
    """The points of this process; may be used from any thread. Call `start` first."""

    def __init__(self, parts: Parts, table: LatestTable, trials: TrialPoints | None = None) -> None:
        """`trials`: those whose objectives are published, too; None: none are known."""
        self._trials = trials or TrialPoints()
        self._trials_topic = parts.names.name(Topic.TRIALS)
        self._table, self._histories = table, parts.histories
        self._topic = parts.names.name(Topic.METRICS)
        self._writer = parts.bus.writer(prompt=True)
        self._bus, self._names, self._beat = parts.bus, parts.names, parts.beat
        self._reader = parts.bus.reader("latest", patient=True)
        self._changed = threading.Condition()
        self._flushing = threading.Lock()
        self._sent: dict[str, _Sent] = {}  # events that were not read back, by their ids
        self._open: dict[str, set[str]] = {}  # the same ids by run
        self._places: dict[str, tuple[int, int]] = {}  # (partition, offset) of a run's last event
        self._floor: dict[int, int] = {}  # the same for all runs that are in no `_places`
        self._latest: Latest = {}
        self._positions: dict[int, int] = {}
        self._failure: BaseException | None = None

    def start(self) -> None:
        """Read what earlier processes left, then follow. Raises BusDenied, RuntimeError."""
        starts, ends = bounds(self._bus, self._names, Topic.METRICS, self._beat)
        known = self._table.positions()
        wanted = {place: known.get(place.partition, 0) for place in ends}
        for place, position in wanted.items():
            if position > ends[place]:
                raise RuntimeError(
                    f"the database has read {place.topic}[{place.partition}] up to {position}, but "
                    f"it ends at {ends[place]}: the database belongs to another bus"
                )
        positions = {place: max(at, starts[place]) for place, at in wanted.items()}
        self._reader.assign(positions)
        self._floor = {place.partition: end - 1 for place, end in ends.items() if end}
        while any(positions[place] < end for place, end in ends.items()):
            self._beat()
            self._take(self._reader.poll(_RECORDS, _POLL_S))
            positions = self._reader.positions()
            if len(self._latest) > _VALUES_KEPT:
                self.flush()
        self.flush()
        threading.Thread(target=self._follow, name="latest", daemon=True).start()

    def accept(self, workspace: str, run_id: str, points: Sequence[Point]) -> Future[None]:
        """Check points of one run and `send` them. Raises ValidationError and BusError."""
        names, steps, times, values = zip(*points, strict=True)
        event = MetricLogged(
            run_id=run_id,
            team=team_of(workspace),
            name=names,
            step=steps,
            time_ms=times,
            value=tuple(map(published, values)),
        )
        return self.send(event)

    def remove(self, workspace: str, run_id: str) -> Future[None]:
        """Remove the points of a run from all histories. Raises BusError."""
        return self.send(MetricsRemoved(run_id=run_id, team=team_of(workspace)))

    def send(self, event: MetricLogged | MetricsRemoved) -> Future[None]:
        """Send points of one run, or their removal. Raises BusError if the bus takes no more."""
        run_id = event.run_id
        points = event if isinstance(event, MetricLogged) else None
        trial = self._trials.reported(points) if points is not None else None
        envelope = Envelope(uuid.uuid4().hex, SOURCE, datetime.now(UTC), run_id, event)
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # a caller that waits no longer cannot cancel it
        waiting = 1 if trial is None else 2

        def delivered(error: BusError | None) -> None:
            nonlocal waiting
            with self._changed:
                waiting -= 1
                over = waiting == 0 or (error is not None and not done.done())
            if done.done() or not over:
                return
            if error is None:
                self._acknowledged(envelope.id)
                done.set_result(None)
            else:
                self._forget(run_id, envelope.id)
                done.set_exception(error)

        with self._changed:
            self._sent[envelope.id] = _Sent(run_id, points)
            self._open.setdefault(run_id, set()).add(envelope.id)
        try:
            if trial is not None:
                at = Envelope(f"{envelope.id}-t", SOURCE, envelope.time, trial.job_id, trial)
                self._writer.send(encode(at, topic=self._trials_topic), delivered)
            self._writer.send(encode(envelope, topic=self._topic), delivered)
        except BusError:
            self._forget(run_id, envelope.id)
            raise
        return done

    def publish(
        self, events: Sequence[TrialLogged | TrialLogsEnded | TagsLogged], timeout_s: float
    ) -> None:
        """Send events about trials, or tags of jobs' runs, and wait for all replicas of them.

        Raises BusError, TimeoutError.
        """
        sent: list[Future[None]] = []
        for event in events:
            done: Future[None] = Future()
            sent.append(done)
            key, topic = (
                (event.run_id, self._topic)
                if isinstance(event, TagsLogged)
                else (event.job_id, self._trials_topic)
            )
            envelope = Envelope(uuid.uuid4().hex, SOURCE, datetime.now(UTC), key, event)
            record = encode(envelope, topic=topic)
            self._writer.send(record, partial(_delivered, done))
        for done in sent:
            done.result(timeout_s)

    def settle_latest(self) -> None:
        """Wait until SQL has what was acknowledged. Raises NotSettledError."""
        if self._failure is not None:
            raise NotSettledError("metrics cannot be stored") from self._failure
        with self._changed:
            if not self._latest and not self._flushing.locked():
                return
        try:
            self.flush()
        except DatabaseAway as error:
            raise NotSettledError("the database does not answer") from error

    def settle_history(self, run_ids: Iterable[str]) -> None:
        """Wait until ClickHouse has what was sent for these runs. Raises NotSettledError."""
        wanted: dict[int, int] = {}
        with self._changed:
            for run_id in run_ids:
                self._await_reading(run_id)
                places = [self._places[run_id]] if run_id in self._places else self._floor.items()
                for partition, offset in places:
                    wanted[partition] = max(offset, wanted.get(partition, -1))
        if not wanted:
            return
        deadline = time.monotonic() + SETTLE_S
        while True:
            positions = self._histories.positions()
            if all(positions.get(partition, 0) > offset for partition, offset in wanted.items()):
                break
            if time.monotonic() > deadline:
                raise NotSettledError("the tracker has not written these metrics yet")
            time.sleep(0.02)
        self._passed(positions)

    def flush(self) -> None:
        """Write the newest values to SQL, and how far the topic is read. Raises DatabaseAway."""
        with self._flushing:
            with self._changed:
                latest, self._latest = self._latest, {}
                positions, self._positions = self._positions, {}
            if not latest and not positions:
                return
            try:
                self._table.write(latest, positions)
            except BaseException:
                with self._changed:
                    for key, row in latest.items():
                        keep_newer(self._latest, key, row)
                    self._positions = {**positions, **self._positions}
                raise

    def _await_reading(self, run_id: str) -> None:
        """Until the run's events that are open now were read back; the lock is held."""
        wanted = set(self._open.get(run_id, ()))
        deadline = time.monotonic() + SETTLE_S
        while wanted & self._open.get(run_id, set()):
            if self._failure is not None:
                raise NotSettledError("metrics cannot be stored") from self._failure
            if not self._changed.wait(deadline - time.monotonic()):
                raise NotSettledError("the bus has not returned these metrics yet")

    def _acknowledged(self, event_id: str) -> None:
        with self._changed:
            sent = self._sent.get(event_id)  # None: it was read back first
            if sent is not None and sent.event is not None:
                self._fold(sent.event)
                self._sent[event_id] = _Sent(sent.run_id, None)

    def _forget(self, run_id: str, event_id: str) -> None:
        with self._changed:
            self._sent.pop(event_id, None)
            self._close(run_id, event_id)
            self._changed.notify_all()

    def _close(self, run_id: str, event_id: str) -> None:
        ids = self._open.get(run_id)
        if ids is not None:
            ids.discard(event_id)
            if not ids:
                del self._open[run_id]

    def _follow(self) -> None:
        written = analyzed = time.monotonic()
        try:
            while True:
                self._take(self._reader.poll(_RECORDS, _POLL_S))
                now = time.monotonic()
                if now - written >= _FLUSH_EVERY_S and (self._positions or self._latest):
                    patiently(self.flush)  # nothing is read from the bus meanwhile
                    written = now
                    if now - analyzed >= _ANALYZE_EVERY_S:
                        self._table.analyze()
                        analyzed = now
        except BaseException as error:
            self._failure = error
            with self._changed:
                self._changed.notify_all()
            raise  # ends the process

    def _take(self, records: Sequence[Record]) -> None:
        ids = [_id(record) for record in records]
        others = {
            event_id: _event(record)
            for event_id, record in zip(ids, records, strict=True)
            if event_id not in self._sent
        }
        with self._changed:
            for record, event_id in zip(records, ids, strict=True):
                self._positions[record.partition] = record.offset + 1
                sent = self._sent.pop(event_id, None)
                if sent is not None:
                    run_id, event = sent
                    self._close(run_id, event_id)
                else:
                    event = others[event_id] if event_id in others else _event(record)
                    if event is None:
                        continue
                    run_id = event.run_id
                if event is not None:
                    with skipping(record):
                        self._fold(event)
                self._places[run_id] = (record.partition, record.offset)
            if len(self._places) > _RUNS_KEPT:
                for partition, offset in self._places.values():
                    self._floor[partition] = max(offset, self._floor.get(partition, -1))
                self._places.clear()
            self._changed.notify_all()

    def _fold(self, event: MetricLogged) -> None:
        if None in event.value:
            columns = zip(event.name, event.step, event.time_ms, event.value, strict=True)
            for name, step, time_ms, value in columns:
                row = (step, time_ms, 0.0 if value is None else value, value is None)
                keep_newer(self._latest, (event.run_id, name), row)
            return
        newest: dict[str, tuple[int, int, float]] = {}
        values = cast("tuple[float, ...]", event.value)
        rows = zip(event.step, event.time_ms, values, strict=True)
        for name, found in zip(event.name, rows, strict=True):
            known = newest.get(name)
            if known is None or found > known:
                newest[name] = found
        for name, found in newest.items():
            keep_newer(self._latest, (event.run_id, name), (*found, False))

    def _passed(self, positions: dict[int, int]) -> None:
        """ClickHouse has so much: forget places before it."""
        with self._changed:
            for run_id, (partition, offset) in list(self._places.items()):
                if offset < positions.get(partition, 0):
                    del self._places[run_id]
            for partition, offset in list(self._floor.items()):
                if offset < positions.get(partition, 0):
                    del self._floor[partition]


def _delivered(done: Future[None], error: BusError | None) -> None:
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _id(record: Record) -> str:
    """The id in its headers; "" without one that can be read."""
    return next((v.decode("latin1") for name, v in record.headers if name == "ce_id"), "")


def _event(record: Record) -> MetricLogged | None:
    """The points of a record; None without points."""
    try:
        event = receive(record).envelope.data
    except UndecodableError as error:
        place = TopicPartition(record.topic, record.partition)
        log.warning("record skipped", place=str(place), offset=record.offset, error=error.reason)
        return None
    return event if isinstance(event, MetricLogged) else None
