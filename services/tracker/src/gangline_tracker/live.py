"""`python -m gangline_tracker.live`: rolling throughput and loss of every run, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import threading

from gangline_bus.codec import UndecodableError, receive
from gangline_bus.ports import Record
from gangline_bus.topics import TopicNames
from gangline_schemas.catalog import Topic
from gangline_schemas.events.steps import WorkerStep
from gangline_service.http_server import HttpServer
from gangline_service.lifecycle import Context, run
from gangline_service.loopback import LOOPBACK
from gangline_service.tokens import TokenBook, TokenFileError
from gangline_tracker.address import write_address
from gangline_tracker.views.config import LiveSettings
from gangline_tracker.views.endpoint import live_app
from gangline_tracker.views.model import LiveRun, LiveRuns
from gangline_tracker.views.stream import StepStream

_SECURITY = "security.protocol"
_TALKATIVE = ("faust", "mode", "aiokafka", "uvicorn")


def main(context: Context[LiveSettings]) -> int:
    """The life of the process; returns its exit code."""
    settings = context.settings
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    if settings.kafka.get(_SECURITY, "plaintext").lower() != "plaintext":
        raise SystemExit("the live view speaks plaintext to Kafka only; leave it out here")
    try:
        tokens = TokenBook.load(settings.tokens_file)
    except TokenFileError as error:
        raise SystemExit(str(error)) from None
    return asyncio.run(_serve(context, tokens))


async def _serve(context: Context[LiveSettings], tokens: TokenBook) -> int:
    settings = context.settings
    names = TopicNames(settings.topic_prefix)
    runs = LiveRuns(settings.live_window_s, settings.live_runs)
    refused = context.meter.create_counter("gangline.live.refused")
    taken = context.meter.create_counter("gangline.live.records")

    lock = threading.Lock()

    def current() -> list[LiveRun]:
        with lock:
            return runs.current()

    def handle(record: Record) -> None:
        try:
            event = receive(record).envelope.data
        except UndecodableError:
            refused.add(1)  # ingest has put it into the DLQ
            return
        if isinstance(event, WorkerStep):
            taken.add(1)
            with lock:
                runs.note(event)

    stream = StepStream(
        settings.bootstrap_servers,
        names.name(Topic.STEPS),
        f"{names.prefix}gangline-live",
        handle,
    )
    server = HttpServer(LOOPBACK, settings.live_port)
    context.health.set("stream", ok=False, detail="joining the group")
    await stream.start()
    server.start(live_app(current, tokens))
    if settings.live_file is not None:
        write_address(settings.live_file, server.port)
    context.health.set("stream", ok=True)
    while not context.stopping.is_set() and not stream.crashed():
        context.health.beat()
        await asyncio.sleep(0.2)
    crashed = stream.crashed()
    server.close()
    await stream.stop()
    return 1 if crashed else 0


if __name__ == "__main__":
    run("live", LiveSettings.load(), main)
