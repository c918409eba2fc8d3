"""The tracker's process: one ingest thread per table, and the endpoint of the embedded engine.

1. Wait for the bus and its topics; open the database and create missing tables.
2. Serve outside queries (embedded engine only).
3. Ingest until a signal stops the process. If the bus or server of a thread is away, the thread
   tries again for about five minutes and logs each try. Any other error ends the process.
4. On stop each thread writes its open batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from opentelemetry.metrics import CallbackOptions, Observation

from gangline_bus.ports import BusUnavailable
from gangline_bus.topics import TopicNames
from gangline_service.bound_address import BoundAddress
from gangline_service.deciding import begin_on_bus, connect, keep_trying
from gangline_service.http_server import HttpServer
from gangline_service.lifecycle import Context
from gangline_service.loopback import LOOPBACK
from gangline_service.tokens import TokenBook, TokenFileError
from gangline_tracker.config import Settings
from gangline_tracker.engine import EngineUnavailable, wait_for_inserts
from gangline_tracker.event_batch import EventBatch
from gangline_tracker.http import THREADS, ClickHouseEndpoint
from gangline_tracker.ingest import GROUPS, METRICS, STREAM_BATCHES, Counts, Group, Pipeline
from gangline_tracker.migrate import migrate
from gangline_tracker.query_turns import QueryTurns
from gangline_tracker.reader import QueryReader
from gangline_tracker.run_cache import RunCache
from gangline_tracker.sink import ClickHouseSink

_AWAY = (EngineUnavailable, BusUnavailable)
_STALL_S = 20.0
_UNASKED = timedelta(milliseconds=100)
COUNTERS: Mapping[str, str] = {
    "gangline.tracker.records": "Records read from Kafka",
    "gangline.tracker.rows": "Rows written to ClickHouse",
    "gangline.tracker.refused": "Records that were no valid event",
    "gangline.tracker.missed": "Records that Kafka deleted before they were read",
}
"""Counters on /metrics, each by table: fields of `Counts`."""


def main(context: Context[Settings]) -> int:
    """The life of the process; returns its exit code."""
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    context.health.expect("clickhouse")
    names = TopicNames(context.settings.topic_prefix)
    begin_on_bus("tracker", connect(context.settings, "tracker"), names, context)
    _prepare_database(context)
    wanted = threading.Event() if context.settings.engine().embedded else None
    server = _serve(context, wanted)
    workers = [_Ingest(context, group, names, wanted) for group in GROUPS]
    _export(context, workers)
    for worker in workers:
        worker.thread.start()
    while not context.stopping.wait(0.5):
        if all(worker.beaten_s() < _STALL_S for worker in workers):
            context.health.beat()
    for worker in workers:
        worker.thread.join(context.settings.stop_grace_s)
    if server is not None:
        server.close()
    return 0


def _prepare_database(context: Context[Settings]) -> None:
    context.health.set("clickhouse", ok=False, detail="opening the database")

    def prepare() -> None:
        client = context.settings.engine().client()
        try:
            engine, pause = context.settings.engine(), context.stopping.wait
            migrate(client, cluster=engine.cluster, pause=None if engine.embedded else pause)
            if not engine.embedded:
                wait_for_inserts(client, pause)
        finally:
            client.close()

    keep_trying(context, prepare, _AWAY)
    context.health.set("clickhouse", ok=True)


def _serve(context: Context[Settings], wanted: threading.Event | None) -> HttpServer | None:
    settings = context.settings
    if not settings.engine().embedded or settings.tokens_file is None:
        return None
    try:
        tokens = TokenBook.load(settings.tokens_file)
    except TokenFileError as error:
        raise SystemExit(str(error)) from None
    path, limits = settings.engine().path, settings.limits()
    endpoint = ClickHouseEndpoint(
        QueryReader(path, limits),
        QueryReader(path, limits),
        tokens,
        threads=max(THREADS, limits.at_once),
        turns=QueryTurns(settings.queries_per_user),
        wanted=wanted,
    )
    server = HttpServer(LOOPBACK, settings.http_port)
    server.start(endpoint.app)
    if settings.http_file is not None:
        address = BoundAddress.of("tracker", settings.instance_id, LOOPBACK, server.port)
        address.write(settings.http_file)
    context.log.info("clickhouse.serving", port=server.port)
    return server


class _Ingest:
    """One group's thread, with a bus connection and a database client of its own."""

    def __init__(
        self,
        context: Context[Settings],
        group: Group,
        names: TopicNames,
        wanted: threading.Event | None,
    ) -> None:
        """`wanted`: readers of metrics wait. None: they ask a server, unseen by us."""
        self._wanted = wanted if group is METRICS else None
        if group is METRICS and wanted is None:
            group = replace(group, flush_after=_UNASKED)
        self.group = group
        self.counts = Counts()
        self._context = context
        self._names = names
        self._beaten = time.monotonic()
        self.thread = threading.Thread(target=self._run, name=f"ingest-{group.table}", daemon=True)

    def beaten_s(self) -> float:
        """Seconds since the thread last turned."""
        return time.monotonic() - self._beaten

    def _beat(self) -> None:
        self._beaten = time.monotonic()

    def _run(self) -> None:
        check = f"ingest {self.group.table}"
        self._context.health.set(check, ok=True)

        def away() -> None:
            self._beat()
            self._context.health.set(check, ok=False, detail="waiting for the bus or the database")

        keep_trying(self._context, self._once, _AWAY, away)

    def _once(self) -> None:
        settings = self._context.settings
        client = settings.engine().client()
        bus = connect(settings, f"tracker.{self.group.table}")
        try:
            if not settings.engine().embedded:
                wait_for_inserts(client, self._context.stopping.wait)
            cache = RunCache(client)
            prefix = self._names.prefix
            pipeline = Pipeline(
                self.group,
                bus,
                ClickHouseSink(client),
                STREAM_BATCHES.get(self.group.table, lambda: EventBatch(cache, prefix)),
                lambda: datetime.now(UTC),
                names=self._names,
                counts=self.counts,
                wanted=self._wanted,
            )
            self._context.health.set(f"ingest {self.group.table}", ok=True)
            note = partial(self._context.vitals.reads, self.group.table)
            pipeline.run(self._context.stopping, self._beat, note)
        finally:
            client.close()
            bus.close()


def _export(context: Context[Settings], workers: list[_Ingest]) -> None:
    def observer(field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(getattr(w.counts, field), {"table": w.group.table}) for w in workers
            ]

        return observe

    for name, description in COUNTERS.items():
        observe = observer(name.rpartition(".")[2])
        context.meter.create_observable_counter(name, [observe], description=description)
