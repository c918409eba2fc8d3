"""An HTTP server for health and queries: one thread for each request."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer

import structlog

log = structlog.get_logger(__name__)

AT_ONCE = 32
ARRIVE_S = 5.0
_MAKE_ROOM_S = 0.5
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ThreadServer(ThreadingHTTPServer):
    """Serves IPv4 or IPv6 from a daemon thread `name`, from `start` to `close`.

    Bound once made; port 0 takes a free one. An idle server checks every `close_within_s` seconds
    whether it was closed. A request must have arrived within `arrive_s`, whatever its pieces do:
    its handler calls `arrived` once it has read all, and else the connection is cut. `at_once`
    bounds the connections. One beyond cuts the oldest one whose request has not arrived; if all
    have, it gets 503 and may come again. Raises OSError when the address cannot be bound.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that come faster than they are accepted

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        name: str,
        close_within_s: float,
        at_once: int = AT_ONCE,
        arrive_s: float = ARRIVE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = threading.BoundedSemaphore(at_once)
        self._arrive_s, self._clock = arrive_s, clock
        self._arriving: dict[socket.socket, float] = {}
        self._arriving_lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
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

    def arrived(self, request: socket.socket) -> None:
        """All that is read of a request is there: its connection is cut no more."""
        with self._arriving_lock:
            self._arriving.pop(request, None)

    def service_actions(self) -> None:
        """Between two connections: cut those whose request did not arrive in time."""
        now_s = self._clock()
        with self._arriving_lock:
            late = [one for one, until_s in self._arriving.items() if until_s <= now_s]
        for request in late:
            self._cut(request)

    def process_request(self, request: object, client_address: object) -> None:
        """A thread of its own for each connection that there is room for."""
        assert isinstance(request, socket.socket)  # noqa: S101 - a stream's
        if self._slots.acquire(blocking=False) or self._made_room():
            with self._arriving_lock:
                self._arriving[request] = self._clock() + self._arrive_s
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be started
                self._leave(request)
                raise
            return
        request.settimeout(0.1)
        with contextlib.suppress(OSError):
            request.sendall(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: object, client_address: object) -> None:
        """The life of a connection's thread."""
        assert isinstance(request, socket.socket)  # noqa: S101 - a stream's
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def shutdown_request(self, request: object) -> None:
        """No cut may meet a descriptor that is another's by then."""
        self.arrived(request)  # type: ignore[arg-type]
        super().shutdown_request(request)  # type: ignore[arg-type]

    def _leave(self, request: socket.socket) -> None:
        self.arrived(request)
        self._slots.release()

    def _made_room(self) -> bool:
        with self._arriving_lock:
            oldest = next(iter(self._arriving), None)
        if oldest is None:
            return False
        self._cut(oldest)
        return self._slots.acquire(timeout=_MAKE_ROOM_S)

    def _cut(self, request: socket.socket) -> None:
        """End it if it is still arriving: its thread's read ends, and leaves the place."""
        with self._arriving_lock:
            if self._arriving.pop(request, None) is not None:
                with contextlib.suppress(OSError):
                    # Of the plain socket: a TLS session belongs to its thread.
                    socket.socket.shutdown(request, socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Without the standard one's reverse look-up of the host name, which can take seconds."""
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Log an error, unless its client closed the connection."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("request not answered", thread=self._thread.name, exc_info=error)
