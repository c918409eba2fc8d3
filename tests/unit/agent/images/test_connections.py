"""A registry leads the agent to no address that is not meant for it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import urllib3

from gangline_schemas.image_reference import ImageReference
from gangline_worker.agent.images import connections, registry
from gangline_worker.agent.images.connections import Bounds, ForbiddenAddress, open_pools, proxy_of
from gangline_worker.agent.images.problems import RegistryAway
from gangline_worker.agent.images.registry import Registry, RegistryOptions
from support.fakes.oci_registry import OciRegistry


class Connected:
    """A connection to an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def getpeername(self) -> tuple[str, int]:
        return self.address, 443


def check(url: str, host: str, address: str) -> None:
    bounds = Bounds(url, frozenset())
    bounds.check(host, cast("socket.socket", Connected(address)))


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "169.254.1.1", "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254",
        "100.100.100.200", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0",
    ],
)  # fmt: skip
def test_a_registry_leads_to_no_service_of_the_machine(address: str) -> None:
    with pytest.raises(ForbiddenAddress):
        check("https://registry.example/v2/a", "elsewhere.example", address)


@pytest.mark.parametrize(
    ("url", "host", "address"),
    [
        ("https://registry.example/v2/a", "elsewhere.example", "10.0.0.1"),
        ("https://registry.example/v2/a", "registry.example", "127.0.1.1"),
        ("http://127.0.0.1:5000/v2/a", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_other_addresses_are_asked(url: str, host: str, address: str) -> None:
    check(url, host, address)


def test_a_registry_with_tls_leads_to_none_without() -> None:
    with OciRegistry() as hub:
        bounds = Bounds("https://registry.example/v2/a", frozenset({"10.0.0.1", hub.host}))
        pools = open_pools(bounds, urllib3.Timeout(5), urllib3.Retry(0))
        with pytest.raises(ForbiddenAddress, match="without TLS"):
            pools.request("GET", "http://localhost:1/token")
        with pytest.raises(ForbiddenAddress, match="another service of this machine"):
            pools.request("GET", f"http://{hub.host}/token")
        assert hub.requests == []


def test_headers_that_come_byte_by_byte_are_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_HEADERS_S", 0.2)

    def answer() -> None:
        asking, _ = server.accept()
        with asking, contextlib.suppress(OSError):
            asking.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            for _ in range(200):
                asking.sendall(b"x")
                time.sleep(0.05)
            asking.sendall(b"\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        pools = open_pools(Bounds(url, frozenset()), urllib3.Timeout(30), urllib3.Retry(0))
        with pytest.raises(urllib3.exceptions.HTTPError):
            pools.request("GET", url)


_TO_ITSELF = b"HTTP/1.1 302 Found\r\nLocation: /\r\nTransfer-Encoding: chunked\r\n\r\n"
_NEVER_ENDED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"


@contextlib.contextmanager
def endless(answer: bytes, more: bytes) -> Iterator[str]:
    """The host of a server whose answers begin so, and never end."""
    stopped = threading.Event()

    def send(asking: socket.socket) -> None:
        with asking, contextlib.suppress(OSError):
            asking.sendall(answer)
            while not stopped.wait(0.01):
                asking.sendall(more)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                asking, _ = server.accept()
                threading.Thread(target=send, args=(asking,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        stopped.set()
        server.shutdown(socket.SHUT_RDWR)


def in_time(work: Callable[[], object]) -> BaseException | None:
    """The error of work that ends."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for the registry without end"
    return failed[0] if failed else None


def manifest(host: str, stopping: threading.Event) -> None:
    image = ImageReference.parse(f"{host}/a:a")
    Registry(image, None, RegistryOptions(), stopping).manifest("a")


def test_the_body_of_a_redirect_is_not_waited_for() -> None:
    with endless(_TO_ITSELF, b"1\r\nx\r\n") as host:
        error = in_time(lambda: manifest(host, threading.Event()))
    assert isinstance(error, RegistryAway)


def test_an_answer_without_end_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_PACE_S", 0.2)
    monkeypatch.setattr(connections, "_LOOK_S", 0.05)
    with endless(_NEVER_ENDED, b"X: y\r\n") as host:
        error = in_time(lambda: manifest(host, threading.Event()))
    assert isinstance(error, RegistryAway)
    assert "less than 1 MiB came" in str(error)


def test_an_answer_without_end_is_broken_off_with_its_gang() -> None:
    stopping = threading.Event()
    with endless(_NEVER_ENDED, b"X: y\r\n") as host:
        threading.Timer(0.2, stopping.set).start()
        error = in_time(lambda: manifest(host, stopping))
    assert "its gang or the agent ends" in str(error)


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of example are asked through a proxy; others are not."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost,.inside.example")


def through(url: str) -> urllib3.PoolManager:
    return open_pools(Bounds(url, frozenset()), urllib3.Timeout(5), urllib3.Retry(0))


@pytest.mark.usefixtures("proxied")
def test_a_registry_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with OciRegistry() as hub:  # it answers requests with whole addresses too, as proxies do
        monkeypatch.setenv("HTTP_PROXY", f"http://{hub.host}")
        url = "http://registry.example:5000/v2/a"
        answer = through(url).request("GET", f"{url}/manifests/latest")
        assert (answer.status, len(hub.requests)) == (401, 1)


@pytest.mark.usefixtures("proxied")
def test_a_registry_with_tls_gets_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def refuse() -> None:
        asking, _ = server.accept()
        with asking:
            asked.append(asking.recv(4096))
            asking.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        proxy = threading.Thread(target=refuse)
        proxy.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.getsockname()[1]}")
        pools = through("https://registry.example/v2/a")
        with pytest.raises(urllib3.exceptions.HTTPError):
            pools.request("GET", "https://registry.example/v2/a/manifests/latest")
        proxy.join()
    assert asked[0].startswith(b"CONNECT registry.example:443 ")


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize(
    "url", ["http://registry.example/token", "https://169.254.169.254/x", "https://[::1]/x"]
)
def test_the_proxy_is_not_led_to_forbidden_addresses(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    pools = through("https://registry.example/v2/a")
    with pytest.raises(ForbiddenAddress):
        pools.request("GET", url)


@pytest.mark.usefixtures("proxied")
def test_hosts_of_no_proxy_are_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert proxy_of("https://hub.inside.example/v2/a") is None
    assert proxy_of("https://registry.example/v2/a") == "http://127.0.0.1:1"
