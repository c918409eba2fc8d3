"""One HTTP POST to a checked address, bounded in time and size. Redirects are not followed."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlsplit

from gangline_alerts.service.addresses import resolve

CONNECT_S = 5.0
ADDRESSES_TRIED = 3
TOTAL_S = 15.0


def post(url: str, body: bytes, headers: Mapping[str, str], *, allow_private: bool) -> int:
    """Send the body and return the status of the answer.

    Raises AddressRefusedError, OSError (also for TLS) and http.client.HTTPException.
    """
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    addresses = resolve(host, port, allow_private=allow_private)
    link = _connected(addresses, port)
    link.settimeout(TOTAL_S)
    if tls:
        context = ssl.create_default_context()
        link = context.wrap_socket(link, server_hostname=host, do_handshake_on_connect=False)
    with contextlib.closing(link), cut_after(TOTAL_S, lambda: link):
        if isinstance(link, ssl.SSLSocket):
            link.do_handshake()
        connection = http.client.HTTPConnection(host, port)
        connection.sock = link
        path = parts.path or "/"
        target = f"{path}?{parts.query}" if parts.query else path
        connection.request("POST", target, body, {"Host": parts.netloc, **headers})
        return connection.getresponse().status


@contextlib.contextmanager
def cut_after(seconds: float, link: Callable[[], socket.socket | None]) -> Iterator[None]:
    """End the connection after that time.

    Else a receiver that sends a byte now and then would keep the thread for ever.
    """
    timer = threading.Timer(seconds, lambda: _cut(link()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _connected(addresses: list[str], port: int) -> socket.socket:
    """A connection to the first address that takes one. Raises the last one's OSError."""
    problem = OSError("no address")
    for address in addresses[:ADDRESSES_TRIED]:
        try:
            return socket.create_connection((address, port), CONNECT_S)
        except OSError as error:
            problem = error
    raise problem


def _cut(link: socket.socket | None) -> None:
    if link is None:
        return
    try:
        link.shutdown(socket.SHUT_RDWR)
    except OSError:
        link.close()
