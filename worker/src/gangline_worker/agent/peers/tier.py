"""An agent's part in what agents ask each other: one object for the shell."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import structlog

from gangline_schemas.base import Event
from gangline_service.private_file import write_private
from gangline_storage.port import ObjectStore
from gangline_storage.shared_secret import SharedSecret
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.host.connections import End
from gangline_worker.agent.isolation.files import Owner

from .client import PeerCopies, PeerFailed
from .files import CopyFiles
from .gangs import Gangs
from .seal import SECRET_KEY
from .server import PeerAnswers, PeerServer
from .tls import PeerTls

log = structlog.get_logger(__name__)

_ASK_S, _AGAIN_S = 5.0, 0.2  # an agent that reloads does not answer for a moment


class PeerTier:
    """Listens once made, answers from `start` to `stop`."""

    def __init__(
        self,
        node_id: str,
        timeout_s: float,
        data: Path,
        server: PeerServer,
        tls: PeerTls | None = None,
    ) -> None:
        """`timeout_s`: how long a peer may take to say something."""
        self._node_id, self._timeout_s = node_id, timeout_s
        self._data = data
        self._gangs = Gangs()
        self._server, self._tls = server, tls
        self._copies: PeerCopies | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def note(self, event: Event) -> None:
        """Note an event of the scheduler's or the fault manager's log."""
        self._gangs.note(event)

    def start(
        self,
        store: ObjectStore,
        owner: Callable[[str], Owner | None],
        layer: Callable[[GangKey, str], BinaryIO | None],
    ) -> PeerCopies:
        """Begin to give what this node has; what the others have. `owner` is of a team's files.

        `layer`: see `PeerAnswers`.
        """
        node_id, secret = self._node_id, SharedSecret(store, SECRET_KEY)
        files = CopyFiles(self._data / "checkpoints", store)
        self._server.answers = PeerAnswers(node_id, secret, self._gangs, files, owner, layer)
        self._server.start()
        self._copies = PeerCopies(node_id, secret, self._gangs, self._timeout_s, self._tls)
        return self._copies

    def confirms(self, gang: GangKey, theirs: End, own: End) -> bool:
        """Whether a connection from another machine is of a gang's user, as an agent there says.

        True as well where agents do not answer each other (`peer_copies` is off).
        """
        known = self._gangs.live(gang.job_id, gang.attempt, 0.0)
        if known is None or self._copies is None:
            return False
        address = theirs[0]
        if any(node.address == address and node.copies_port is None for node in known.nodes):
            return True
        ends_s = time.monotonic() + _ASK_S
        while True:
            reasons = []
            for peer in self._gangs.at(known, address, self._node_id):
                try:
                    if self._copies.confirms(peer, gang, theirs, own):
                        return True
                except PeerFailed as error:
                    reasons.append(f"{peer.node_id} {error}")
            if not reasons or time.monotonic() > ends_s:
                reason = "; ".join(reasons) or "it is not of the gang's user there"
                log.warning(
                    "rendezvous.turned_away",
                    job=gang.job_id,
                    attempt=gang.attempt,
                    address=address,
                    reason=reason,
                )
                return False
            time.sleep(_AGAIN_S)

    def stop(self) -> None:
        """Give nothing more."""
        self._server.close()


def open_peer_tier(
    node_id: str,
    address: str,
    port: int,
    timeout_s: float,
    data: Path,
    tls: PeerTls | None = None,
) -> PeerTier | None:
    """None where it cannot listen (`port` 0: at a free one): then the store has to do."""
    try:
        server = _listen(address, port, data / "copies.port", tls)
    except OSError as error:
        log.warning("agent.copies_not_offered", address=address, reason=str(error))
        return None
    return PeerTier(node_id, timeout_s, data, server, tls)


def _listen(address: str, port: int, kept: Path, tls: PeerTls | None) -> PeerServer:
    """At the port that was given, or that the last agent had: gangs that run know it by that one.

    Raises OSError.
    """
    if port:
        return PeerServer(address, port, tls)
    server = None
    with contextlib.suppress(OSError, ValueError, OverflowError):
        server = PeerServer(address, int(kept.read_text("ascii")), tls)
    if server is None:
        server = PeerServer(address, 0, tls)
    write_private(kept, str(server.port).encode())
    return server
