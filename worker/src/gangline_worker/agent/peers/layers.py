"""Layers of images from the other nodes of a gang, so that a registry sends each of them once.

Each layer has one node of the gang that fetches it from the registry, before all others of its own.
The others follow its download, byte by byte as it comes. If that node does not get on, they
continue at the registry where they are. The caller compares the bytes with the layer's digest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from gangline_schemas.events.scheduling import GangAllocated
from gangline_worker.agent.decide.keys import GangKey
from gangline_worker.agent.images.manifests import Blob

from .client import PeerCopies, PeerFailed
from .gangs import Peer
from .server import layer_path

log = structlog.get_logger(__name__)

_PATIENCE_S = 10.0  # it may prepare other gangs first
_AGAIN_S = 0.2
_FAILURES = 3


@dataclass(frozen=True, slots=True)
class LayerCopies:
    """The nodes of one gang; `slow` ones are asked no more. May be used by many threads."""

    copies: PeerCopies
    allocation: GangAllocated
    stopping: threading.Event
    slow: set[str] = field(default_factory=set)

    def waits_for(self, blob: Blob) -> bool:
        """Whether the others get this layer from this node."""
        return self._fetcher(blob) is None

    def follow(self, blob: Blob, path: Path) -> None:
        """Add to the file at `path` what another node has of a layer, up to all of it."""
        peer = self._fetcher(blob)
        if peer is None or peer.node_id in self.slow:
            return
        failures, waits_until_s = 0, time.monotonic() + _PATIENCE_S
        with path.open("ab") as file:
            while (at := file.tell()) < blob.size and failures < _FAILURES:
                try:
                    self._add(peer, blob, file.tell(), file.write)
                except PeerFailed as error:
                    failures += 1
                    log.warning("image.peer_failed", node=peer.node_id, error=str(error))
                if file.tell() > at:
                    waits_until_s = time.monotonic() + _PATIENCE_S
                elif time.monotonic() > waits_until_s or self.stopping.wait(_AGAIN_S):
                    break
            if file.tell() < blob.size:
                self.slow.add(peer.node_id)

    def _add(self, peer: Peer, blob: Blob, at: int, write: Callable[[bytes], object]) -> None:
        """Write the bytes that it has now after the first `at`. Raises PeerFailed."""
        gang = GangKey(self.allocation.job_id, self.allocation.attempt)
        path = layer_path(gang.job_id, gang.attempt, blob.digest, at)
        with self.copies.answer(peer, gang, path, blob.size - at) as chunks:
            for chunk in chunks:
                at += len(chunk)
                if at > blob.size:
                    raise PeerFailed("gives more bytes than a layer has")
                write(chunk)

    def _fetcher(self, blob: Blob) -> Peer | None:
        """The node that fetches a layer from the registry; None: this one."""
        own = self.copies.node_id
        nodes = sorted(node.node_id for node in self.allocation.nodes)
        chosen = nodes[int(blob.digest[-8:], 16) % len(nodes)]
        peers = self.copies.gangs.beside(self.allocation, own)
        return next((peer for peer in peers if peer.node_id == chosen), None)
