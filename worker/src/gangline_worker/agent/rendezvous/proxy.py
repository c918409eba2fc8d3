"""Admits a gang's own ranks alone to its TCPStore, which checks no identity itself.

The store listens in a network namespace that only this process has. Here a thread accepts its
connections, asks the kernel whose they are, and passes the bytes of the right ones on:

- from this machine: of the user that the gang's ranks run as;
- from another one: from an address of the gang's nodes, if an agent there says that it is of the
  gang's user. Until then the connection waits here.

A gang has as many connections as its ranks need (`clients_of`), and all gangs together no more
than this process has descriptors for. A connection beyond either is closed; all others stay.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import queue
import resource
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from gangline_worker.agent.host.connections import End, is_here, uid_of

T = TypeVar("T")

_CLONE_NEWNET = 0x4000_0000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_CHUNK_BYTES = 256 * 1024
_WAIT_S = 20.0
"""A connection that is not confirmed by then is closed; its rank connects again."""
CLIENTS_PER_RANK = 16
"""A rank has one connection of its own, and NCCL may open another for each process group."""
_DESCRIPTORS_PER_CLIENT = 3
"""Of each connection here: its outer end, its inner end, and the store's."""
_OTHER_DESCRIPTORS = 128
"""For all else that this process has open: torch, listening sockets, the agent's channel."""
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


def clients_of(ranks: int) -> int:
    """How many connections a gang of so many ranks may have to its store: 16,384 for 1,024."""
    return CLIENTS_PER_RANK * ranks


@dataclass(frozen=True, slots=True)
class AllowedClients:
    """Allowed clients: a user of this machine, and the addresses of other machines.

    `clients` connections at once at most, and as many that wait for an answer.
    """

    uid: int
    peers: frozenset[str]
    clients: int


class StoreNamespace:
    """A thread in a network namespace of its own, in which there is only a loopback."""

    def __init__(self) -> None:
        """Raises OSError when the system refuses."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="store-namespace")
        self._pool.submit(_enter_namespace).result()

    def run(self, work: Callable[[], T]) -> T:
        """Do it there."""
        return self._pool.submit(work).result()

    def connect(self, port: int) -> socket.socket:
        """A connection to a port there. Raises OSError."""
        return self.run(lambda: socket.create_connection(("127.0.0.1", port)))


def _enter_namespace() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace for the rendezvous")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


@dataclass(slots=True, eq=False)
class _Side:
    """One end of a connection that is passed on; `pending` waits to be sent to it."""

    socket: socket.socket
    other: _Side | None = None
    pending: bytes = b""


@dataclass(slots=True, eq=False)
class _Listener:
    """A gang's listening socket."""

    key: str
    socket: socket.socket
    allowed: AllowedClients
    port: int
    sides: set[_Side] = field(default_factory=set)
    waiting: int = 0

    @property
    def is_full(self) -> bool:
        """Whether the gang has all connections that it may have."""
        return len(self.sides) >= 2 * self.allowed.clients


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A connection from another machine of which it is being asked whose it is."""

    listener: _Listener
    socket: socket.socket
    since_s: float


class Proxy:
    """The listening sockets of all gangs; one thread passes on what comes over them."""

    def __init__(
        self, namespace: StoreNamespace, ask: Callable[[int, str, End, End], None]
    ) -> None:
        """`ask` leads to `answer` with that number: whether the gang's client connects like that.

        It is given the gang's key, their end and ours, and must not wait for the answer.
        """
        self._namespace = namespace
        self._ask = ask
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, _Listener] = {}
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._spare = _spare()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        threading.Thread(target=self._run, name="store-proxy", daemon=True).start()

    def open(self, key: str, listening: socket.socket, allowed: AllowedClients, port: int) -> None:
        """Pass allowed clients of `listening` on to the store at `port` of the namespace."""
        listening.setblocking(False)
        self._soon(lambda: self._opened(_Listener(key, listening, allowed, port)))

    def close(self, key: str) -> None:
        """Close all connections and admit no more; nothing happens when it is not open."""
        self._soon(lambda: self._closed(key))

    def _soon(self, what: Callable[[], None]) -> None:
        self._todo.put(what)
        self._wake_w.send(b"w")

    def answer(self, number: int, *, confirmed: bool) -> None:
        """The answer about a connection."""
        self._soon(lambda: self._on_answer(number, confirmed=confirmed))

    def _opened(self, listener: _Listener) -> None:
        self._listeners[listener.key] = listener
        self._selector.register(listener.socket, selectors.EVENT_READ, listener)

    def _closed(self, key: str) -> None:
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self._selector.unregister(listener.socket)
            listener.socket.close()
            for side in list(listener.sides):
                self._hang_up(listener, side)
            self._turn_away(lambda waiting: waiting.listener is listener)

    def _run(self) -> None:
        while True:
            for ready, mask in self._selector.select(_WAIT_S if self._waiting else None):
                if ready.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_r.recv(4096)
                elif isinstance(ready.data, _Listener):
                    self._accept(ready.data)
                else:
                    listener, side = ready.data
                    self._serve(listener, side, mask)
            while not self._todo.empty():
                self._todo.get()()
            self._turn_away_late()

    def _accept(self, listener: _Listener) -> None:
        """Take one connection: it goes through, waits, or is closed; nothing else follows."""
        try:
            outer, peer = listener.socket.accept()
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                self._shed(listener)
            return
        try:
            admitted = self._admit(listener, outer, peer[:2])
        except OSError:  # no descriptor to look it up with, or it has gone
            admitted = False
        if not admitted:
            outer.close()

    def _admit(self, listener: _Listener, outer: socket.socket, theirs: End) -> bool:
        """Pass a connection on, or let it wait. False: neither. Raises OSError."""
        if listener.is_full or not self._has_room():
            return False
        own, allowed = outer.getsockname()[:2], listener.allowed
        if is_here(theirs[0]):
            return uid_of(theirs, own) == allowed.uid and self._pass_on(listener, outer)
        if theirs[0] not in allowed.peers or listener.waiting >= allowed.clients:
            return False
        number = next(self._numbers)
        self._waiting[number] = _Waiting(listener, outer, time.monotonic())
        listener.waiting += 1
        self._ask(number, listener.key, theirs, own)
        return True

    def _has_room(self) -> bool:
        """Whether the process has the descriptors of one more connection, the store's too."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        sides = sum(len(listener.sides) for listener in self._listeners.values())
        clients = len(self._waiting) + sides // 2
        return (clients + 1) * _DESCRIPTORS_PER_CLIENT + _OTHER_DESCRIPTORS <= limit

    def _shed(self, listener: _Listener) -> None:
        """Close the connection that could not be taken, else it would be ready for ever."""
        with contextlib.suppress(OSError):
            os.close(self._spare)
            listener.socket.accept()[0].close()
        self._spare = _spare()

    def _on_answer(self, number: int, *, confirmed: bool) -> None:
        waiting = self._leave(number)
        if waiting is None:
            return
        listener = waiting.listener
        if not (confirmed and not listener.is_full and self._pass_on(listener, waiting.socket)):
            waiting.socket.close()

    def _leave(self, number: int) -> _Waiting | None:
        """It waits no more; None: it did not."""
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.listener.waiting -= 1
        return waiting

    def _turn_away(self, whom: Callable[[_Waiting], bool]) -> None:
        for number in [number for number, waiting in self._waiting.items() if whom(waiting)]:
            waiting = self._leave(number)
            if waiting is not None:
                waiting.socket.close()

    def _turn_away_late(self) -> None:
        before_s = time.monotonic() - _WAIT_S
        self._turn_away(lambda waiting: waiting.since_s < before_s)

    def _pass_on(self, listener: _Listener, outer: socket.socket) -> bool:
        """Join a connection with one to the store. False: there is none, and `outer` is open."""
        try:
            inner = self._namespace.connect(listener.port)
        except OSError:
            return False
        sides = _Side(outer), _Side(inner)
        sides[0].other, sides[1].other = sides[1], sides[0]
        listener.sides.update(sides)
        try:
            for side in sides:
                side.socket.setblocking(False)
                side.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._watch(listener, side, selectors.EVENT_READ)
        except OSError:
            self._hang_up(listener, sides[0])
        return True

    def _serve(self, listener: _Listener, side: _Side, mask: int) -> None:
        other = side.other
        if other is None or side not in listener.sides:  # hung up in this very round
            return
        try:
            if mask & selectors.EVENT_WRITE:
                side.pending = side.pending[side.socket.send(side.pending) :]
            if mask & selectors.EVENT_READ:
                data = side.socket.recv(_CHUNK_BYTES)
                if not data:
                    self._hang_up(listener, side)
                    return
                other.pending = data[_sent(other.socket, data) :]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up(listener, side)
            return
        for end, back in ((side, other), (other, side)):
            # Nothing is read for an end that has not taken what was read before.
            reads = 0 if back.pending else selectors.EVENT_READ
            writes = selectors.EVENT_WRITE if end.pending else 0
            self._watch(listener, end, reads | writes)

    def _watch(self, listener: _Listener, side: _Side, mask: int) -> None:
        known = side.socket in self._selector.get_map()
        if mask and known:
            self._selector.modify(side.socket, mask, (listener, side))
        elif mask:
            self._selector.register(side.socket, mask, (listener, side))
        elif known:
            self._selector.unregister(side.socket)

    def _hang_up(self, listener: _Listener, side: _Side) -> None:
        for end in listener.sides & {side, side.other}:  # not what was hung up with its other end
            self._watch(listener, end, 0)
            end.socket.close()
            listener.sides.discard(end)


def _sent(to: socket.socket, data: bytes) -> int:
    with contextlib.suppress(BlockingIOError):
        return to.send(data)
    return 0


def _spare() -> int:
    """A descriptor to give up where none is left. -1: there is none now."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
