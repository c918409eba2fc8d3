"""An HTTP server of a service's side doors (health, questions): one thread for each request."""

from __future__ import annotations

import contextlib
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from socketserver import TCPServer

import structlog

log = structlog.get_logger(__name__)

_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ThreadServer(ThreadingHTTPServer):
    """Serves IPv4 or IPv6 from a daemon thread `name`, from `start` to `close`.

    Bound once made; port 0 takes a free one. An idle server looks every `close_within_s` seconds
    whether it was closed. `at_once` bounds the connections: one beyond gets 503 and may come
    again. Raises OSError when the address cannot be bound.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        name: str,
        close_within_s: float,
        at_once: int | None = None,
    ) -> None:
        self._slots = threading.BoundedSemaphore(at_once) if at_once is not None else None
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

    def process_request(self, request: object, client_address: object) -> None:
        """A thread of its own for each connection that there is room for."""
        if self._slots is None or self._slots.acquire(blocking=False):
            try:
                super().process_request(request, client_address)  # type: ignore[arg-type]
            except BaseException:  # no thread could be started
                self._free_slot()
                raise
            return
        request.settimeout(0.1)  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            request.sendall(_BUSY)  # type: ignore[attr-defined]
        self.shutdown_request(request)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """The life of a connection's thread."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._free_slot()

    def _free_slot(self) -> None:
        if self._slots is not None:
            self._slots.release()

    def server_bind(self) -> None:
        """Without the standard one's reverse look-up of the host name, which can take seconds."""
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """A client that went away is no news; anything else is."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("request not answered", thread=self._thread.name, exc_info=error)
