"""`python -m gangline_console`: serves the pages, behind the gateway.

1. Listen, and wait for the first connection: templates and HTTP client are loaded only then.
2. Serve until a signal.
"""

from __future__ import annotations

from gangline_console.config import Settings
from gangline_service.bound_address import BoundAddress
from gangline_service.lifecycle import Context, run
from gangline_service.loopback import LOOPBACK
from gangline_service.loopback_server import LoopbackServer, has_connection, listen


def main(context: Context[Settings]) -> int:
    """The life of the process; returns its exit code."""
    settings, health = context.settings, context.health
    health.expect("http")
    listening = listen(settings.console_port, "GANGLINE_CONSOLE_PORT")
    address = BoundAddress.of("console", settings.instance_id, LOOPBACK, listening.getsockname()[1])
    if settings.console_file is not None:
        address.write(settings.console_file)
    health.set("http", ok=True, detail=address.url)
    context.log.info("console.serving", url=address.url)
    while not has_connection(listening):
        health.beat()
        if context.stopping.is_set():
            return 0
    from gangline_console.app import create_app
    from gangline_console.client import Gateway

    secret = settings.service_token.get_secret_value()
    server = LoopbackServer(
        create_app(Gateway(settings.console_gateway_url, settings.console_gateway_ca), secret),
        listening,
    )
    while not context.stopping.wait(0.5):
        if not server.alive:
            raise RuntimeError("the HTTP server has ended")
        health.beat()
    server.close()
    return 0


if __name__ == "__main__":
    run("console", Settings.load(), main)
