"""The proxy of a rendezvous: connections from another machine wait until an agent confirms them."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from gangline_worker.agent.host.connections import End
from gangline_worker.agent.rendezvous import proxy as store_proxy
from gangline_worker.agent.rendezvous.proxy import AllowedClients, Proxy, clients_of
from gangline_worker.agent.rendezvous.store_server import listen

GANG = "job/1"


class HiddenStore:
    """A store that answers each message with the same one. Only this process gets there."""

    def __init__(self) -> None:
        self.listening = listen("127.0.0.1", 0)
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.listening.getsockname()[1])

    def connect(self, port: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port))

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._echo, args=(self.listening.accept()[0],)).start()

    @staticmethod
    def _echo(link: socket.socket) -> None:
        with link, contextlib.suppress(OSError):
            while data := link.recv(100):
                link.sendall(data)


@dataclass
class OpenProxy:
    """A proxy that is open, and its questions about connections."""

    proxy: Proxy
    at: tuple[str, int]
    questions: queue.Queue[tuple[int, str, End, End]]
    store_port: int

    @contextlib.contextmanager
    def visit(self) -> Iterator[tuple[socket.socket, int]]:
        """A connection from elsewhere that has said something; the number of the question."""
        with socket.create_connection(self.at, timeout=30) as link:
            link.sendall(b"hello")
            number, key, theirs, own = self.questions.get(timeout=30)
            assert (key, theirs, own) == (GANG, link.getsockname(), self.at)
            yield link, number


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenProxy]:
    monkeypatch.setattr(store_proxy, "is_here", lambda _: False)
    store = HiddenStore()
    questions: queue.Queue[tuple[int, str, End, End]] = queue.Queue()
    proxy = Proxy(store, lambda *asked: questions.put(asked))  # type: ignore[arg-type]
    listening = listen("127.0.0.1", 0)
    at = listening.getsockname()
    proxy.open(
        GANG,
        listening,
        AllowedClients(uid=0, peers=frozenset({"127.0.0.1"}), clients=100),
        store.port,
    )
    yield OpenProxy(proxy, at, questions, store.port)
    proxy.close(GANG)
    store.listening.close()


def hung_up(link: socket.socket) -> bool:
    try:
        return link.recv(100) == b""
    except ConnectionResetError:  # with what it had said unread
        return True


def test_a_confirmed_client_is_passed_on_with_what_it_said_meanwhile(opened: OpenProxy) -> None:
    with opened.visit() as (link, number):
        link.settimeout(0.2)
        with pytest.raises(TimeoutError):
            link.recv(100)
        link.settimeout(30)
        opened.proxy.answer(number, confirmed=True)
        assert link.recv(100) == b"hello"


def test_a_stranger_is_hung_up_on(opened: OpenProxy) -> None:
    with opened.visit() as (link, number):
        opened.proxy.answer(number, confirmed=False)
        assert hung_up(link)
        opened.proxy.answer(number, confirmed=True)  # an answer that comes twice opens nothing
    with opened.visit() as (link, number):
        opened.proxy.answer(number, confirmed=True)
        assert link.recv(100) == b"hello"


def test_who_waits_when_the_proxy_closes_is_hung_up_on(opened: OpenProxy) -> None:
    with opened.visit() as (link, number):
        opened.proxy.close(GANG)
        assert hung_up(link)
        opened.proxy.answer(number, confirmed=True)


def test_the_proxy_outlives_gangs_whose_ranks_elsewhere_are_still_there(opened: OpenProxy) -> None:
    with contextlib.ExitStack() as clients:
        links = []
        for _ in range(3):
            link, number = clients.enter_context(opened.visit())
            opened.proxy.answer(number, confirmed=True)
            assert link.recv(100) == b"hello"
            links.append(link)
        opened.proxy.close(GANG)
        assert all(map(hung_up, links))
    another = listen("127.0.0.1", 0)
    opened.at = another.getsockname()
    opened.proxy.open(
        GANG, another, AllowedClients(0, frozenset({"127.0.0.1"}), 100), opened.store_port
    )
    with opened.visit() as (link, number):
        opened.proxy.answer(number, confirmed=True)
        assert link.recv(100) == b"hello"


def test_a_question_that_nobody_answers_keeps_nobody_for_ever(
    opened: OpenProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_proxy, "_WAIT_S", 0.0)
    with opened.visit() as (link, _):
        opened.proxy.close("another gang")  # the proxy looks around
        assert hung_up(link)


def test_from_any_other_address_nobody_is_even_asked_about(
    opened: OpenProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HiddenStore()
    listening = listen("127.0.0.1", 0)
    at = listening.getsockname()
    clients = AllowedClients(uid=0, peers=frozenset({"192.0.2.7"}), clients=100)
    opened.proxy.open("other/1", listening, clients, store.port)
    with socket.create_connection(at, timeout=30) as link:
        assert hung_up(link)
    opened.proxy.close("other/1")
    store.listening.close()
    assert opened.questions.empty()


def test_a_gang_has_so_many_connections_and_no_more(opened: OpenProxy) -> None:
    store = HiddenStore()
    listening = listen("127.0.0.1", 0)
    at = listening.getsockname()
    clients = AllowedClients(uid=0, peers=frozenset({"127.0.0.1"}), clients=2)
    opened.proxy.open("small/1", listening, clients, store.port)

    def comes(*, waits: bool = True) -> socket.socket:
        link = socket.create_connection(at, timeout=30)
        link.sendall(b"hello")
        if waits:
            opened.proxy.answer(opened.questions.get(timeout=30)[0], confirmed=True)
            assert link.recv(100) == b"hello"
        return link

    with comes() as first, comes() as second:
        with comes(waits=False) as third:
            assert hung_up(third)
        first.sendall(b"again")
        assert first.recv(100) == b"again"
        second.shutdown(socket.SHUT_WR)
        assert second.recv(100) == b"", "the proxy has closed it"
        with comes():
            pass
    opened.proxy.close("small/1")
    store.listening.close()


def test_a_gang_has_so_many_connections_that_wait_and_no_more(opened: OpenProxy) -> None:
    listening = listen("127.0.0.1", 0)
    clients = AllowedClients(uid=0, peers=frozenset({"127.0.0.1"}), clients=2)
    opened.proxy.open("small/1", listening, clients, opened.store_port)
    with contextlib.ExitStack() as links:
        for _ in range(2):
            links.enter_context(socket.create_connection(listening.getsockname(), timeout=30))
            opened.questions.get(timeout=30)
        late = links.enter_context(socket.create_connection(listening.getsockname(), timeout=30))
        assert hung_up(late)
        with opened.visit() as (link, number):  # another gang's
            opened.proxy.answer(number, confirmed=True)
            assert link.recv(100) == b"hello"
    opened.proxy.close("small/1")


def test_a_gang_of_1024_ranks_may_have_16384_connections() -> None:
    assert clients_of(1024) == 16_384
