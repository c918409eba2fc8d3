"""Messages of ranks: one Unix socket per gang, all served by one thread.

A connection counts once its peer is known: the gang's user, a process of a rank of this gang, and
the rank's token in its `Hello`. Frames are lines of JSON (`gangline_schemas.rank_protocol`); one
that is too long or not understood ends the connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

import structlog
from pydantic import Base64Bytes, ValidationError

from gangline_schemas.rank_protocol import FROM_RANK, FromAgent, Hello, Report
from gangline_worker.agent.decide.inputs import RankMessage
from gangline_worker.agent.decide.keys import GangKey, RankKey
from gangline_worker.agent.isolation.files import Owner, listen_for
from gangline_worker.columns import DROPPED_METRIC

from .gang_share import LEFT_OUT, USED_UP, GangShare

log = structlog.get_logger(__name__)

FRAME_LIMIT_BYTES = 1024 * 1024
_CONNECTIONS_PER_RANK = 8
_UNREAD_LIMIT_BYTES = 1024 * 1024
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class _Connection:
    gang: GangKey
    socket: socket.socket
    pid: int
    uid: int
    rank: RankKey | None = None
    incoming: bytes = b""
    outgoing: bytes = b""
    left_out: bool = False  # steps, and its user knows


@dataclass(slots=True)
class _Listener:
    gang: GangKey
    socket: socket.socket
    path: Path
    tokens: Mapping[int, str]
    uid: int
    connections: set[int] = field(default_factory=set)
    share: GangShare = field(default_factory=GangShare)


@dataclass(frozen=True, slots=True)
class KeptLine:
    """A connection, by its descriptor."""

    descriptor: int
    rank: RankKey | None
    incoming: Base64Bytes
    outgoing: Base64Bytes


@dataclass(frozen=True, slots=True)
class KeptListener:
    """A gang's socket, by its descriptor, and its connections."""

    gang: GangKey
    descriptor: int
    path: Path
    tokens: dict[int, str] = field(repr=False)
    uid: int
    lines: tuple[KeptLine, ...]


class RankServer:
    """Serves all gangs of an agent.

    `owns(pid, rank)` says whether a process is the rank's. `receive` may block, which holds back
    the ranks. `note` tells a rank's user something. Both are called from the serving thread.
    """

    def __init__(
        self,
        owns: Callable[[int, RankKey], bool],
        receive: Callable[[RankMessage], None],
        note: Callable[[RankKey, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owns = owns
        self._receive = receive
        self._note = note
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[GangKey, _Listener] = {}
        self._connections: dict[int, _Connection] = {}
        self._lock = threading.Lock()
        self._served = threading.Condition(self._lock)
        self._serving = False
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, None)
        self._paused = False
        self._thread = threading.Thread(target=self._run, name="rank-socket", daemon=True)
        self._thread.start()

    def open(
        self, gang: GangKey, path: Path, tokens: Mapping[int, str], owner: Owner | None = None
    ) -> None:
        """Listen for a gang's ranks; `tokens` by rank; None: they run as the agent's user.

        Raises OSError.
        """
        path.parent.mkdir(mode=0o700, exist_ok=True)  # cleaners of /tmp may have removed it
        listening = listen_for(owner, path, socket.SOCK_STREAM)
        with self._lock:
            uid = owner.uid if owner is not None else os.getuid()
            self._listeners[gang] = _Listener(gang, listening, path, dict(tokens), uid)
            self._selector.register(listening, selectors.EVENT_READ, gang)
        self._wake()

    def pause(self) -> None:
        """Receive nothing more, for ever; all else can be done as before."""
        with self._served:
            self._paused = True
            self._served.notify_all()
        self._wake()
        self._thread.join()
        self._wake_r.close()
        self._wake_w.close()

    def kept(self) -> tuple[KeptListener, ...]:
        """All sockets of a paused server, to be adopted."""
        with self._lock:
            return tuple(
                KeptListener(
                    gang,
                    listener.socket.fileno(),
                    listener.path,
                    dict(listener.tokens),
                    listener.uid,
                    tuple(self._kept_line(number) for number in sorted(listener.connections)),
                )
                for gang, listener in self._listeners.items()
            )

    def _kept_line(self, number: int) -> KeptLine:
        found = self._connections[number]
        return KeptLine(found.socket.fileno(), found.rank, found.incoming, found.outgoing)

    def adopt(self, kept: KeptListener) -> None:
        """Serve a socket that this process served before the agent reloaded."""
        listening = _adopted(kept.descriptor)
        with self._lock:
            listener = _Listener(kept.gang, listening, kept.path, kept.tokens, kept.uid)
            self._listeners[kept.gang] = listener
            self._selector.register(listening, selectors.EVENT_READ, kept.gang)
            for line in kept.lines:
                adopted = _adopted(line.descriptor)
                found = _Connection(kept.gang, adopted, *_peer(adopted), line.rank)
                found.incoming, found.outgoing = line.incoming, line.outgoing
                self._connections[line.descriptor] = found
                listener.connections.add(line.descriptor)
                self._selector.register(found.socket, selectors.EVENT_READ, line.descriptor)
        self._wake()

    def close(self, gang: GangKey) -> None:
        """Stop listening and hang up; nothing happens when it is not open."""
        with self._lock:
            listener = self._listeners.pop(gang, None)
            if listener is None:
                return
            self._selector.unregister(listener.socket)
            listener.socket.close()
            listener.path.unlink(missing_ok=True)
            for number in list(listener.connections):
                self._hang_up(number, listener)
            self._served.notify_all()
        self._wake()

    def send(self, rank: RankKey, message: FromAgent) -> None:
        """Tell every connection of a rank; hang up on one that reads nothing of it."""
        frame = message.encode() + b"\n"
        with self._lock:
            for number, connection in list(self._connections.items()):
                if connection.rank != rank:
                    continue
                if len(connection.outgoing) > _UNREAD_LIMIT_BYTES:
                    self._hang_up(number, self._listeners.get(connection.gang))
                else:
                    connection.outgoing += frame
        self._wake()

    def drain(self, rank: RankKey, timeout_s: float) -> None:
        """Wait until all that a rank sent before it ended was received.

        A process that it left behind may hold a connection open: what that one sends is not
        waited for. `timeout_s`: for a `receive` that never returns.
        """
        with self._served:
            self._served.wait_for(lambda: self._paused or not self._pending(rank), timeout_s)

    def _pending(self, rank: RankKey) -> bool:
        waiting = select.poll()
        if listener := self._listeners.get(rank.gang):
            waiting.register(listener.socket, select.POLLIN)
        for found in self._connections.values():
            if found.gang == rank.gang and found.rank in {None, rank}:
                waiting.register(found.socket, select.POLLIN)
        return self._serving or bool(waiting.poll(0))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full of wake-ups already, or paused
            self._wake_w.send(b"w")

    def _run(self) -> None:
        while not self._paused:
            with self._lock:
                rests_s = self._watch(self._clock())
            for key, mask in self._selector.select(rests_s):
                if key.data is None:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_r.recv(4096)
                else:
                    self._serve_one(key.data, mask)

    def _watch(self, now_s: float) -> float | None:
        """Wait for all but gangs whose share is used up; until the first may be read, None: all."""
        rests = {gang: each.share.rests_s(now_s) for gang, each in self._listeners.items()}
        for number, connection in self._connections.items():
            mask = 0 if rests.get(connection.gang) else selectors.EVENT_READ
            mask |= selectors.EVENT_WRITE if connection.outgoing else 0
            watched = connection.socket in self._selector.get_map()
            if watched and mask:
                self._selector.modify(connection.socket, mask, number)
            elif mask:
                self._selector.register(connection.socket, mask, number)
            elif watched:
                self._selector.unregister(connection.socket)
        return min(filter(None, rests.values()), default=None)

    def _serve_one(self, wanted: GangKey | int, mask: int) -> None:
        with self._lock:
            self._serving = True
        if isinstance(wanted, GangKey):
            self._accept(wanted)
        else:
            self._serve(wanted, mask)
        with self._served:
            self._serving = False
            self._served.notify_all()

    def _accept(self, gang: GangKey) -> None:
        with self._lock, contextlib.suppress(OSError):
            listener = self._listeners.get(gang)
            if listener is None:
                return
            accepted, _ = listener.socket.accept()
            if len(listener.connections) >= _CONNECTIONS_PER_RANK * len(listener.tokens):
                log.warning("rank_socket.too_many", job=gang.job_id, attempt=gang.attempt)
                accepted.close()
                return
            accepted.setblocking(False)
            number = accepted.fileno()
            self._connections[number] = _Connection(gang, accepted, *_peer(accepted))
            listener.connections.add(number)
            self._selector.register(accepted, selectors.EVENT_READ, number)

    def _serve(self, number: int, mask: int) -> None:
        with self._lock:
            connection = self._connections.get(number)
            if connection is None:
                return
            data: bytes | None = None
            try:
                if mask & selectors.EVENT_WRITE and connection.outgoing:
                    sent = connection.socket.send(connection.outgoing)
                    connection.outgoing = connection.outgoing[sent:]
                if mask & selectors.EVENT_READ:
                    data = connection.socket.recv(65_536)
            except BlockingIOError:
                pass
            except OSError:
                data = data or b""
            listener = self._listeners.get(connection.gang)
            over = listener is not None and listener.share.spend(len(data or b""), self._clock())
        if over and connection.rank is not None:
            self._note(connection.rank, USED_UP)
        # Messages are passed on outside of the lock: `receive` may wait.
        if data is not None and not (data and self._take(connection, data)):
            with self._lock:
                self._hang_up(number, self._listeners.get(connection.gang))

    def _take(self, connection: _Connection, data: bytes) -> bool:
        """Pass on the whole frames; False when the connection must end."""
        *frames, connection.incoming = (connection.incoming + data).split(b"\n")
        if any(len(frame) > FRAME_LIMIT_BYTES for frame in (*frames, connection.incoming)):
            return self._refuse(connection, "a frame is above 1 MiB")
        for frame in filter(None, frames):
            try:
                message = FROM_RANK.validate_json(frame)
            except ValidationError:
                return self._refuse(connection, "a frame is no message of the rank protocol")
            if isinstance(message, Hello) and not self._admit(connection, message):
                return self._refuse(connection, "the peer is not the rank that it names")
            if connection.rank is None:
                return self._refuse(connection, "no hello came first")
            if isinstance(message, Report) and DROPPED_METRIC in message.metrics:
                if not connection.left_out:
                    self._note(connection.rank, LEFT_OUT)
                connection.left_out = True
            self._receive(RankMessage(connection.rank, message, connection.pid))
        return True

    def _admit(self, connection: _Connection, hello: Hello) -> bool:
        with self._lock:
            listener = self._listeners.get(connection.gang)
        if listener is None or connection.uid != listener.uid:
            return False
        rank, token = RankKey(connection.gang, hello.rank), listener.tokens.get(hello.rank, "")
        if connection.rank not in {None, rank} or not token:
            return False
        if not compare_digest(token.encode(), hello.token.encode()):
            return False
        if not self._owns(connection.pid, rank):
            return False
        connection.rank = rank
        return True

    def _refuse(self, connection: _Connection, reason: str) -> bool:
        log.warning(
            "rank_socket.refused",
            job=connection.gang.job_id,
            attempt=connection.gang.attempt,
            reason=reason,
        )
        return False

    def _hang_up(self, number: int, listener: _Listener | None) -> None:
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        if listener is not None:
            listener.connections.discard(number)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user of the process that connected."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def _adopted(descriptor: int) -> socket.socket:
    os.set_inheritable(descriptor, False)
    found = socket.socket(fileno=descriptor)
    found.setblocking(False)
    return found
