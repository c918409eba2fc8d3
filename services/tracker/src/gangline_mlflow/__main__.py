"""`python -m gangline_mlflow`: MLflow's own server on Gangline's store, behind the gateway.

1. Listen. With `mlflow_lazy`, wait for the first connection; no web server is loaded before.
2. Answer what the server can do; other requests wait. With `mlflow_lazy`, load MLflow only after
   this first answer.
3. Wait for the bus, migrate the database, and read from the bus what it lacks.
4. Serve until a signal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from gangline_bus.topics import TopicNames
from gangline_mlflow import collecting, parts
from gangline_mlflow.artifacts import Artifacts
from gangline_mlflow.config import Settings
from gangline_mlflow.front import Front, server_info
from gangline_mlflow.history import Histories
from gangline_mlflow.server import create_app
from gangline_schemas.gpu_prices import GpuPrices
from gangline_service.bound_address import BoundAddress
from gangline_service.deciding import begin_on_bus, connect
from gangline_service.lifecycle import Context, run
from gangline_service.loopback import LOOPBACK
from gangline_service.loopback_server import LoopbackServer, has_connection, listen
from gangline_storage.open import open_store
from gangline_storage.s3_options import S3Options


def main(context: Context[Settings]) -> int:
    """The life of the process; returns its exit code."""
    settings, health = context.settings, context.health
    health.expect("http")
    listening = listen(settings.mlflow_port, "GANGLINE_MLFLOW_PORT")
    address = BoundAddress.of("mlflow", settings.instance_id, LOOPBACK, listening.getsockname()[1])
    if settings.mlflow_file is not None:
        address.write(settings.mlflow_file)
    if settings.mlflow_lazy:
        health.set("http", ok=True, detail="starts with the first request")
        if not _wait(lambda: has_connection(listening), context):
            return 0
    token = settings.service_token.get_secret_value()
    front = Front(token, server_info(presigned=settings.mlflow_presigned))
    server = LoopbackServer(front, listening, _uvloop)
    if settings.mlflow_lazy and not _wait(lambda: front.asked.wait(0.5), context):
        return 0
    names = TopicNames(settings.topic_prefix)
    bus = connect(settings, "mlflow")
    begin_on_bus("mlflow", bus, names, context)
    histories = Histories(settings.clickhouse_url, settings.clickhouse_user, token)
    artifacts = Artifacts(open_store(settings.artifacts_url, options=S3Options(part_threads=2)))
    prices = GpuPrices.of(settings.gpu_prices)
    parts.use(parts.Parts(bus, names, histories, artifacts, health.beat, prices))
    front.open(create_app(settings))
    health.set("http", ok=True, detail=address.url)
    context.log.info("mlflow.serving", url=address.url)
    while not context.stopping.wait(0.5):
        if not server.alive:
            raise RuntimeError("the HTTP server has ended")
        health.beat()
    server.close()
    return 0


def _wait(is_done: Callable[[], bool], context: Context[Settings]) -> bool:
    """Ask until something is done. False: the process must stop."""
    while not is_done():
        context.health.beat()
        if context.stopping.is_set():
            return False
    return True


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made


if __name__ == "__main__":
    if sys.argv[1:2] == ["gc"]:
        sys.exit(collecting.main(sys.argv[2:]))
    run("mlflow", Settings.load(), main)
