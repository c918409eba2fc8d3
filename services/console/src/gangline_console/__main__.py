"""`python -m gangline_console`: serves the pages, behind the gateway.

1. Listen, and wait for the first connection: templates and HTTP client are loaded only then.
2. Serve until a signal.
"""

from __future__ import annotations

import select
import socket

from gangline_console.config import Settings
from gangline_service.bound_address import BoundAddress
from gangline_service.lifecycle import Context, run
from gangline_service.loopback import LOOPBACK

_BACKLOG = 512


def main(context: Context[Settings]) -> int:
    """The life of the process; returns its exit code."""
    settings, health = context.settings, context.health
    health.expect("http")
    listening = _listen(settings)
    address = BoundAddress.of("console", settings.instance_id, LOOPBACK, listening.getsockname()[1])
    if settings.console_file is not None:
        address.write(settings.console_file)
    health.set("http", ok=True, detail=address.url)
    context.log.info("console.serving", url=address.url)
    while not select.select([listening], [], [], 0.5)[0]:
        health.beat()
        if context.stopping.is_set():
            return 0
    from gangline_console.serving import Server

    server = Server(settings, listening)
    while not context.stopping.wait(0.5):
        if not server.alive:
            raise RuntimeError("the HTTP server has ended")
        health.beat()
    server.close()
    return 0


def _listen(settings: Settings) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, settings.console_port))
    except OSError as error:
        raise SystemExit(
            f"cannot listen on {LOOPBACK}:{settings.console_port} ({error.strerror}): set "
            "GANGLINE_CONSOLE_PORT to a free port (0 takes one)"
        ) from None
    listening.listen(_BACKLOG)
    return listening


if __name__ == "__main__":
    run("console", Settings.load(), main)
