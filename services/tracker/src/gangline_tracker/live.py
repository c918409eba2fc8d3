"""`python -m gangline_tracker.live`: makes gangline.progress from gangline.steps.

1. Read what an earlier process published: no run falls back behind it.
2. Join the group that reads the steps, from its committed offsets on.
3. Five times a second: publish the runs that are due, wait until the bus has them, then let the
   offsets of the steps behind them be committed.

A process that is killed reads the steps of its last seconds again. Any error ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from gangline_bus.codec import UndecodableError, decode
from gangline_bus.kafka import KafkaBus
from gangline_bus.ports import BusError, BusUnavailable, Record, TopicPartition
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.events.steps import WorkerStep
from gangline_service.deciding import begin_on_bus
from gangline_service.lifecycle import Context, end_denied, run
from gangline_tracker.views.config import LiveSettings
from gangline_tracker.views.publishing import Publisher, published
from gangline_tracker.views.runs import EVERY_MS, Runs
from gangline_tracker.views.security import Security, SecurityError, security
from gangline_tracker.views.stream import Positions, Source, StepStream

CLIENT = "gangline-live"
_TALKATIVE = ("faust", "mode", "aiokafka")
_TICK_S = 0.2
_FLUSH_S = 5.0
_JOIN_S = 30.0
_ASK_S = 5.0
"""Far below the shortest silence that is a stall."""
_WAITING = 100_000
"""Records whose offsets may wait to be committed."""
_STRETCH, _STRETCH_S = 1000, 2.0
"""Records, and seconds, that are read past something that faust cannot read."""


def main(context: Context[LiveSettings]) -> int:
    """The life of the process; returns its exit code."""
    settings = context.settings
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        how = security(settings.kafka)
    except SecurityError as error:
        raise SystemExit(str(error)) from None
    return run_alone(_View(context, how).serve())


def run_alone(life: Coroutine[Any, Any, int]) -> int:
    """Run it to its end, and end no other task: the process is about to end.

    asyncio.run would wait for all tasks, and those of faust do not end where the group of readers
    was never joined.
    """
    return asyncio.new_event_loop().run_until_complete(life)


def _now_ms() -> int:
    return int(time.time() * 1000)


async def joined(stream: StepStream, within_s: float = _JOIN_S) -> None:
    """Start to read. Raises BusUnavailable if that takes long.

    At some errors aiokafka's search for its coordinator ends for good, and nothing would be read.
    """
    try:
        await asyncio.wait_for(stream.start(), within_s)
    except TimeoutError:
        raise BusUnavailable("the group of readers was not joined in time") from None


class _View:
    """The parts of the process."""

    def __init__(self, context: Context[LiveSettings], how: Security) -> None:
        settings = context.settings
        self._context = context
        self._security = how
        self._asked_s = float("-inf")
        self._names = TopicNames(settings.topic_prefix)
        client = f"{self._names.prefix}{CLIENT}"
        self._bus = KafkaBus(
            settings.bootstrap_servers,
            client=client,
            settings=settings.kafka,
            password=settings.kafka_password,
            on_denied=end_denied,
        )
        self._runs = Runs(_now_ms(), limit=settings.live_runs, values=settings.live_metrics)
        meter = context.meter
        self._refused = meter.create_counter(
            "gangline.live.refused", description="Records of steps that were no valid event"
        )
        self._taken = meter.create_counter(
            "gangline.live.records", description="Records of steps that were read"
        )
        self._published = meter.create_counter(
            "gangline.live.published", description="Events of progress that were published"
        )
        self._alive = meter.create_gauge(
            "gangline.live.runs", description="Runs whose newest values are kept"
        )

    async def serve(self) -> int:
        """Until the process stops."""
        context, settings = self._context, self._context.settings
        context.health.expect("stream")
        begin_on_bus("live-view", self._bus, self._names, context)
        context.health.set("stream", ok=False, detail="reads what was published")
        for event, at_ms in published(
            self._bus, self._names, context.stopping, context.health.beat
        ):
            self._runs.restore(event, at_ms)
        publisher = Publisher(self._bus, self._names)
        stream = StepStream(
            Source(
                settings.bootstrap_servers,
                self._names.name(Topic.STEPS),
                f"{self._names.prefix}{CLIENT}",
                settings.instance_id if "instance_id" in settings.model_fields_set else None,
                self._security,
            ),
            self._handle,
            self._aside,
            self._runs.noted,
        )
        context.health.set("stream", ok=False, detail="joining the group")
        await joined(stream)
        context.health.set("stream", ok=True)
        password = settings.kafka_password()
        while not context.stopping.is_set() and not stream.crashed():
            context.health.beat()
            await self._listen()
            if settings.kafka_password() != password:
                raise BusUnavailable("Kafka has a new password: the next process takes it")
            await self._publish(publisher, stream)
            await asyncio.sleep(_TICK_S)
        crashed = stream.crashed()
        if not crashed:
            await self._publish(publisher, stream, everything=True)
        await stream.stop()
        publisher.close()
        return 1 if crashed else 0

    async def _listen(self) -> None:
        """Ask the bus now and then: while it is away, silence says nothing of the runs."""
        if time.monotonic() - self._asked_s < _ASK_S:
            return
        self._asked_s = time.monotonic()
        if not await asyncio.to_thread(self._bus_answers):
            self._runs.deaf(_now_ms())

    def _bus_answers(self) -> bool:
        try:
            places = self._names.places(self._bus, Topic.STEPS)
            self._context.vitals.reads("steps", lambda: self._behind(places))
        except BusError:
            return False
        return True

    def _behind(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Records of steps of which no progress is published yet."""
        done = self._bus.committed(f"{self._names.prefix}{CLIENT}", places)
        starts, ends = self._bus.start_offsets(places), self._bus.end_offsets(places)
        return {at: max(0, ends[at] - max(done[at] or 0, starts[at])) for at in places}

    async def _publish(
        self, publisher: Publisher, stream: StepStream, *, everything: bool = False
    ) -> None:
        """Publish what is due. `everything`: also what would be due within a second."""
        now_ms = _now_ms()
        asked_ms = now_ms + EVERY_MS if everything else now_ms
        self._published.add(publisher.publish(self._runs.due(asked_ms), now_ms))
        done = self._runs.done()  # more are noted while this waits
        self._alive.set(len(self._runs))
        safe = await asyncio.to_thread(publisher.flush, _FLUSH_S)
        self._context.health.set("bus", ok=safe, detail="" if safe else "takes no events")
        if safe:
            stream.done_to(done)
        if stream.waiting() > _WAITING:
            raise BusUnavailable("gangline.progress takes too few events, and steps keep coming")

    def _handle(self, record: Record) -> None:
        try:
            event = decode(record).data
        except UndecodableError:
            self._refused.add(1)  # ingest has put it into the DLQ
            return
        if isinstance(event, WorkerStep):
            self._taken.add(1)
            self._runs.note(event, _now_ms())

    def _aside(self, at: Positions) -> tuple[list[Record], dict[TopicPartition, int]]:
        """Read a stretch with the bus's own reader, which passes over what cannot be read."""
        reader = self._bus.reader("aside")
        try:
            reader.assign(at)
            records = reader.poll(_STRETCH, _STRETCH_S)
            return records, reader.positions()
        finally:
            reader.close()


if __name__ == "__main__":
    run("live", LiveSettings.load(), main)
