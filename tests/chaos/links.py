"""Ways between a node and what it needs: TCP proxies that can be cut, restored and slowed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16
SIZE_BYTES = 4  # before each answer of Kafka's protocol


class Link:
    """A proxy on loopback to a port there. Data sent while it is cut arrives once it is restored.

    So do connections: as with packets that are lost, no side notices that the way is cut.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((LOOPBACK, 0))
        self._whole = threading.Event()
        self._whole.set()
        self._factor = 1.0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def cut(self) -> None:
        """Nothing passes any more, in neither direction."""
        self._whole.clear()

    def mend(self) -> None:
        """Everything passes again."""
        self._whole.set()

    def slow(self, factor: float) -> None:
        """Each answer takes `factor` times as long as the server took for it; 1: as it is."""
        self._factor = factor

    def close(self) -> None:
        """Take no more connections; those that are open end with their ends."""
        self.mend()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answers(self, server: socket.socket) -> Iterator[bytes]:
        """What the server sends, piece by piece."""
        return _chunks(server)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._whole.wait()
        with contextlib.ExitStack() as ends:
            ends.enter_context(client)
            try:
                server = socket.create_connection((LOOPBACK, self._target_port))
            except OSError:  # no server there: the client sees its connection end
                return
            ends.enter_context(server)
            exchange = _Exchange()
            asking = threading.Thread(target=self._ask, args=(client, server, exchange))
            asking.start()
            self._answer(server, client, exchange)
            asking.join()

    def _ask(self, client: socket.socket, server: socket.socket, exchange: _Exchange) -> None:
        with _both_ended(client, server):
            for data in _chunks(client):
                self._whole.wait()
                exchange.since_s = time.monotonic()  # before it may be answered
                server.sendall(data)

    def _answer(self, server: socket.socket, client: socket.socket, exchange: _Exchange) -> None:
        with _both_ended(client, server):
            for data in self._answers(server):
                spent_s = time.monotonic() - exchange.since_s
                time.sleep(spent_s * (self._factor - 1.0))
                self._whole.wait()
                client.sendall(data)
                exchange.since_s = time.monotonic()


class BusLink(Link):
    """To a Kafka broker, whose address in its answers becomes this link's: clients ask it there."""

    def _answers(self, server: socket.socket) -> Iterator[bytes]:
        theirs, mine = (
            LOOPBACK.encode() + port.to_bytes(4, "big") for port in (self._target_port, self.port)
        )
        with server.makefile("rb") as stream:
            while len(size := stream.read(SIZE_BYTES)) == SIZE_BYTES:
                yield size + stream.read(int.from_bytes(size, "big")).replace(theirs, mine)


class _Exchange:
    """When the last piece of a request or of an answer was to be passed on (monotonic seconds)."""

    def __init__(self) -> None:
        self.since_s = time.monotonic()


def _chunks(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(CHUNK_BYTES):
        yield data


@contextlib.contextmanager
def _both_ended(*ends: socket.socket) -> Iterator[None]:
    """However this direction ends, the other one ends too."""
    with contextlib.suppress(OSError):
        yield
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
