"""Connections to registries, and to where these lead: token servers and stores of layers.

A user chooses the registry, and it chooses the addresses. So the agent refuses, before it sends
anything, the addresses of metadata services, other services of this machine, and plain HTTP where
the registry has TLS. Through a proxy (HTTPS_PROXY, NO_PROXY) it sees no addresses: then it refuses
what the names say, and the proxy must refuse the rest.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ProtocolError
from urllib3.response import BaseHTTPResponse, HTTPResponse

from gangline_schemas.metadata_services import ADDRESSES

_HEADERS_S = 60.0
"""The time for all headers of an answer; a time-out of the connection is for each byte."""
_KEPT = 4
"""Connections to a host that are used again, at least as many as downloads at a time."""
_LOOK_S = 1.0
_CONNECTED = "gangline_connected"
"""The attribute of an answer with its socket, which its connection may have given up by then."""
_METADATA = frozenset(map(ipaddress.ip_address, ADDRESSES))


class ForbiddenAddress(Exception):
    """A registry leads to where the agent does not go."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a registry with this URL may lead. `plain_http`: hosts that may be without TLS."""

    url: str
    plain_http: frozenset[str]

    @property
    def _is_plain(self) -> bool:
        return urlsplit(self.url).scheme == "http"

    def check_plain(self, host: str, port: int) -> None:
        """Raise ForbiddenAddress where TLS is needed."""
        if not self._is_plain and not {host, f"{host}:{port}"} & self.plain_http:
            raise ForbiddenAddress("it leads to an address without TLS")

    def check(self, host: str, connected: socket.socket) -> None:
        """Raise ForbiddenAddress for a connection to where the agent does not go."""
        self._check(host, connected.getpeername()[0].partition("%")[0])

    def check_named(self, host: str, port: int, *, tls: bool) -> None:
        """The same for a host that a proxy will connect to."""
        if not tls:
            self.check_plain(host, port)
        with contextlib.suppress(ValueError):  # a name: where it leads is the proxy's to check
            self._check(host, host.strip("[]"))

    def _check(self, host: str, peer: str) -> None:
        found = ipaddress.ip_address(peer)
        address = getattr(found, "ipv4_mapped", None) or found
        own = urlsplit(self.url).hostname
        if address in _METADATA or address.is_link_local:
            raise ForbiddenAddress("it leads to an address of the machine's network alone")
        if (address.is_loopback or address.is_unspecified) and not self._is_plain and host != own:
            raise ForbiddenAddress("it leads to another service of this machine")


def proxy_of(url: str) -> str | None:
    """The proxy for this registry, as the environment says; None: it is asked directly."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


def open_pools(
    bounds: Bounds, timeout: urllib3.Timeout, retries: urllib3.Retry
) -> urllib3.PoolManager:
    """Connections within these bounds; they raise ForbiddenAddress.

    All of a registry's go through its proxy, if it has one: also those to where it leads.
    """

    class Plain(HTTPConnection):
        def connect(self) -> None:
            if self.proxy is None:
                bounds.check_plain(self.host, self.port)
            super().connect()
            if self.proxy is None:
                bounds.check(self.host, self.sock)

        def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3
            connected = self.sock
            with _broken_off(connected):
                return _bounded(super().getresponse(), connected)

    class Secured(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            if self.proxy is None:
                bounds.check(self.host, self.sock)

        def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as in urllib3
            connected = self.sock
            with _broken_off(connected):
                return _bounded(super().getresponse(), connected)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class SecuredPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Secured

    class Proxied(urllib3.ProxyManager):
        def urlopen(self, method: str, url: str, *given: Any, **named: Any) -> Any:
            parts = urlsplit(url)
            tls = parts.scheme == "https"
            bounds.check_named(parts.hostname or "", parts.port or (443 if tls else 80), tls=tls)
            return super().urlopen(method, url, *given, **named)

    proxy = proxy_of(bounds.url)
    pools = (
        urllib3.PoolManager(timeout=timeout, retries=retries, maxsize=_KEPT)
        if proxy is None
        else Proxied(proxy, timeout=timeout, retries=retries, maxsize=_KEPT)
    )
    pools.pool_classes_by_scheme = {"http": PlainPool, "https": SecuredPool}
    return pools


@contextlib.contextmanager
def ended_when(answer: BaseHTTPResponse, over: Callable[[], bool]) -> Iterator[None]:
    """The answer's connection ends once `over` says so, also in the middle of a read.

    A read may last without end: a registry can send the ends of chunks byte by byte.
    """
    connected: socket.socket = getattr(answer, _CONNECTED)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_LOOK_S):
            if over():
                _end(connected)
                return

    threading.Thread(target=watch, name="registry-pace", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _bounded(answer: HTTPResponse, connected: socket.socket) -> HTTPResponse:
    """The answer, for `ended_when`. The body of a redirect is not read: it may have no end.

    Raises ValueError if its Location is not an address: this closes its connection. urllib3 would
    find it later, and leave the connection open.
    """
    urlsplit(answer.headers.get("Location", ""))
    answer.drain_conn = answer.close  # type: ignore[method-assign]
    setattr(answer, _CONNECTED, connected)
    return answer


def _end(connected: socket.socket) -> None:
    with contextlib.suppress(OSError, ValueError):
        connected.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _broken_off(connected: socket.socket) -> Iterator[None]:
    """A connection that ends unless this is left in time. Raises ProtocolError."""
    late = threading.Event()

    def end() -> None:
        late.set()
        _end(connected)

    timer = threading.Timer(_HEADERS_S, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if late.is_set():  # what came looks like a whole answer
        raise ProtocolError("the headers of an answer came too slowly")
