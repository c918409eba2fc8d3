"""How an agent gets files of a checkpoint from others that hold them.

Each answer is digested as it comes and kept only if it is what was committed. A peer that does not
answer, is too slow or is not an agent is not asked again in the round. After `_FAILURES` failures
no peer is asked again, so that a round costs a bounded time.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import structlog

from gangline_schemas.events.scheduling import GangAllocated
from gangline_schemas.events.workers import ObjectDigest
from gangline_storage.digest import Digest
from gangline_storage.errors import StoreError
from gangline_storage.port import CHUNK_BYTES
from gangline_storage.shared_secret import SharedSecret
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.connections import End

from .files import name_of
from .gangs import Gangs, Peer
from .seal import PeerRequest, new_nonce, proof, same, token
from .server import (
    NODE_HEADER,
    NONCE_HEADER,
    PROOF_HEADER,
    SCHEME,
    ConnectionAnswer,
    Held,
    connection_path,
    path_of,
)
from .tls import PeerTls

log = structlog.get_logger(__name__)

SLOWEST_BYTES_PER_S = 32 << 20  # a peer that gives less does not help: the store gives more
_FAILURES = 3
_ASKED_AT_ONCE = 64
_LIST_LIMIT_BYTES = 4 << 20
_TOLD_CHARS = 200  # of what no agent may have said


class PeerFailed(Exception):
    """A peer does not answer as it should; the message says how."""


class CopyDiffers(Exception):
    """A peer's copy is not what was committed; the message says what it is."""


@dataclass(frozen=True, slots=True)
class PeerCopies:
    """The other agents. `timeout_s`: how long one may take to say something."""

    node_id: str
    secret: SharedSecret
    gangs: Gangs
    timeout_s: float
    tls: PeerTls | None = None

    def round(self, allocation: GangAllocated) -> Round:
        """For one look at what a gang starts from."""
        return Round(self, allocation)

    def confirms(self, peer: Peer, gang: GangKey, theirs: End, own: End) -> bool:
        """Whether a peer says that a connection from it to here is a gang's. Raises PeerFailed."""
        path = connection_path(gang.job_id, gang.attempt, theirs, own)
        with self.answer(peer, gang, path, 0) as chunks:
            found = whole(chunks)
        try:
            return ConnectionAnswer.decode(found).confirmed
        except ValueError:
            raise PeerFailed("answers with an unknown form about a connection") from None

    @contextlib.contextmanager
    def answer(
        self, peer: Peer, gang: GangKey, path: str, size_bytes: int
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of an answer. Raises PeerFailed, also while they are read."""
        connection = self._connection(peer)
        with contextlib.closing(connection):
            with _failures():
                connection.connect()
            ends_s = self.timeout_s + size_bytes / SLOWEST_BYTES_PER_S
            with _ends_after(connection.sock, ends_s):
                yield self._chunks(connection, peer, gang, path)

    def _connection(self, peer: Peer) -> http.client.HTTPConnection:
        where = (peer.address, peer.port)
        if self.tls is None:
            return http.client.HTTPConnection(*where, timeout=self.timeout_s)
        return http.client.HTTPSConnection(*where, timeout=self.timeout_s, context=self.tls.client)

    def _chunks(
        self, connection: http.client.HTTPConnection, peer: Peer, gang: GangKey, path: str
    ) -> Iterator[bytes]:
        secret = self._secret()
        request = PeerRequest(
            gang.job_id, gang.attempt, self.node_id, peer.node_id, path, new_nonce()
        )
        with _failures():
            connection.request(
                "GET",
                path,
                headers={
                    NODE_HEADER: request.client,
                    NONCE_HEADER: request.nonce,
                    "Authorization": f"{SCHEME} {token(secret, request)}",
                },
            )
            answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise PeerFailed(f"answers with status {answer.status}")
        if not same(answer.headers.get(PROOF_HEADER, ""), proof(secret, request)):
            raise PeerFailed("cannot show that it is an agent of this platform")
        left_bytes = int(answer.headers.get("Content-Length", "0"))
        while left_bytes:
            with _failures():
                chunk = answer.read1(min(left_bytes, CHUNK_BYTES))
            if not chunk:
                raise PeerFailed("hung up in the middle, or was too slow")
            left_bytes -= len(chunk)
            yield chunk

    def _secret(self) -> bytes:
        try:
            return self.secret.value()
        except StoreError as error:
            raise PeerFailed(f"cannot be asked without the store's secret: {error}") from None


class Round:
    """Asks peers for the files of one checkpoint. For one thread."""

    def __init__(self, copies: PeerCopies, allocation: GangAllocated) -> None:
        self._copies = copies
        self._allocation = allocation
        self._gang = GangKey(allocation.job_id, allocation.attempt)
        self._holders: dict[str, list[Peer]] = {}
        self._answered: set[Peer] = set()
        self._dropped: set[Peer] = set()
        self._failures = 0

    def find(self, wanted: Sequence[ObjectDigest]) -> list[ObjectDigest]:
        """Ask peers which of these they have; gives all in the order in which to `bring` them.

        A peer is asked once, also by a further call.
        """
        gangs, own = self._copies.gangs, self._copies.node_id
        self._ask(gangs.beside(self._allocation, own))
        if any(name_of(digest) not in self._holders for digest in wanted):
            self._ask(gangs.elsewhere(self._allocation, own))
        return in_turn(wanted, self._holders)

    def bring(self, digest: ObjectDigest, put: Callable[[Iterator[bytes]], object]) -> str | None:
        """Let `put` write a file's bytes; the node that gave them, None: no peer has it.

        `put` must keep nothing when the iterator raises. Raises what `put` does.
        """
        name = name_of(digest)
        for peer in self._holders.get(name, ()):
            if peer in self._dropped or self._failures >= _FAILURES:
                continue
            try:
                path = path_of(self._gang.job_id, self._gang.attempt, name)
                with self._copies.answer(peer, self._gang, path, digest.size_bytes) as chunks:
                    put(verified(chunks, digest))
            except PeerFailed as error:
                self._failures += 1
                self._drop(peer, error)
            except CopyDiffers as error:
                self._failures += 1
                log.warning("checkpoint.peer_copy_damaged", node=peer.node_id, damage=str(error))
            else:
                return peer.node_id
        return None

    def _ask(self, peers: Sequence[Peer]) -> None:
        """Ask each of them once for its files; one that is late is not waited for."""
        known = self._answered | self._dropped
        peers = [peer for peer in peers if peer not in known]
        if not peers:
            return
        pool = ThreadPoolExecutor(_ASKED_AT_ONCE, thread_name_prefix="peer-list")
        asked = {peer: pool.submit(self._held, peer) for peer in peers}
        wait(asked.values(), self._copies.timeout_s)
        pool.shutdown(wait=False, cancel_futures=True)
        for peer, answer in asked.items():
            if answer.cancelled():  # its turn did not come: nothing is known of it
                continue
            if not answer.done():
                self._drop(peer, PeerFailed("did not say in time what it holds"))
            elif isinstance(error := answer.exception(), PeerFailed):
                self._drop(peer, error)
            else:
                self._answered.add(peer)
                for name in answer.result():
                    self._holders.setdefault(name, []).append(peer)

    def _held(self, peer: Peer) -> tuple[str, ...]:
        path = path_of(self._gang.job_id, self._gang.attempt)
        with self._copies.answer(peer, self._gang, path, 0) as chunks:
            found = whole(chunks)
        try:
            return Held.decode(found).files
        except ValueError:
            raise PeerFailed("answers with an unknown form about its files") from None

    def _drop(self, peer: Peer, error: PeerFailed) -> None:
        self._dropped.add(peer)
        log.warning("checkpoint.peer_failed", node=peer.node_id, error=str(error))


def whole(chunks: Iterator[bytes]) -> bytes:
    """All of an answer in a few words. Raises PeerFailed."""
    found = b""
    for chunk in chunks:
        found += chunk
        if len(found) > _LIST_LIMIT_BYTES:
            raise PeerFailed("says far too much")
    return found


def in_turn(wanted: Sequence[ObjectDigest], holders: dict[str, list[Peer]]) -> list[ObjectDigest]:
    """Files of the first peers first, files that no peer has last, else as they came.

    Each node of a gang has another first peer, so each gives to one other at a time.
    """
    firsts = [found[0] for found in holders.values()]
    places = {peer: place for place, peer in enumerate(dict.fromkeys(firsts))}
    last = len(places)

    def place(digest: ObjectDigest) -> int:
        found = holders.get(name_of(digest))
        return places[found[0]] if found else last

    return sorted(wanted, key=place)


def verified(chunks: Iterator[bytes], digest: ObjectDigest) -> Iterator[bytes]:
    """The bytes as they come; raises CopyDiffers at the end if they are not what was committed."""
    found = Digest()
    for chunk in chunks:
        found.update(chunk)
        if found.size_bytes > digest.size_bytes:
            break
        yield chunk
    if found.size_bytes != digest.size_bytes:
        raise CopyDiffers(
            f"{digest.key} ends at another size than {digest.size_bytes:,} bytes there"
        )
    if found.hexdigest() != digest.xxh3:
        raise CopyDiffers(
            f"{digest.key} has xxh3-128 {found.hexdigest()} there, {digest.xxh3} was committed"
        )


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Say of a connection's errors that the peer failed."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise PeerFailed(f"{type(error).__name__}: {error}"[:_TOLD_CHARS]) from None


@contextlib.contextmanager
def _ends_after(sock: socket.socket, seconds: float) -> Iterator[None]:
    """Hang up then, whatever is still being read, byte by byte or not at all."""

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # its TLS belongs to another thread

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
