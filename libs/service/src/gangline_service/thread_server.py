"""An HTTP server of a service's side doors (health, questions): one thread for each request."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6

import structlog

log = structlog.get_logger(__name__)


class ThreadServer(ThreadingHTTPServer):
    """Serves IPv4 or IPv6 from a daemon thread `name`, from `start` to `close`.

    Bound once made; port 0 takes a free one. An idle server looks every `close_within_s` seconds
    whether it was closed. Raises OSError when the address cannot be bound.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        name: str,
        close_within_s: float,
    ) -> None:
        if ":" in address[0]:
            self.address_family = AF_INET6
        super().__init__(address, handler)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(close_within_s,), name=name, daemon=True
        )

    @property
    def port(self) -> int:
        """The bound port."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering; also where it has never begun."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def server_bind(self) -> None:
        """Without the standard one's reverse look-up of the host name, which can take seconds."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """A client that went away is no news; anything else is."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("request not answered", thread=self._thread.name, exc_info=error)
