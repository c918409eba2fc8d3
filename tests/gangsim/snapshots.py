"""Snapshots in the simulation: kept in memory, and each takeover from one is compared with the log.

They add no random draw and no trace line, so a seed's run is the same with and without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gangline_bus.fold import fold_log
from gangline_bus.ports import TopicPartition
from gangline_bus.snapshot import SnapshotCodec, SnapshotHeader, Snapshots
from gangsim.engine import Engine, Violation

if TYPE_CHECKING:
    from gangline_bus.decider import DeciderLoop
    from gangsim.bus import SimBroker
    from gangsim.services import Service

KEPT = 3


class SimSnapshots:
    """The store of all services' snapshots."""

    def __init__(self, broker: SimBroker, engine: Engine) -> None:
        self._broker = broker
        self._engine = engine
        self._held: dict[str, dict[int, bytes]] = {}
        self._codecs: dict[str, SnapshotCodec[Any]] = {}

    def newest(self, service: str, shard: int) -> Iterator[bytes]:
        held = self._held.get(service, {})
        return iter([held[seq] for seq in sorted(held, reverse=True)])

    def put(self, header: SnapshotHeader, data: bytes) -> None:
        held = self._held.setdefault(header.service, {})
        held[header.next_seq] = data
        for seq in sorted(held)[:-KEPT]:
            del held[seq]

    def of(self, service: Service, every: int | None) -> Snapshots[Any] | None:
        """What a new process of the service begins with."""
        if every is None:
            return None
        if service.name not in self._codecs:
            self._codecs[service.name] = service.codec()
        return Snapshots(self, self._codecs[service.name], every=every)

    def check(self, service: Service, loop: DeciderLoop[Any]) -> None:
        """A state from a snapshot is the fold of the whole log, and continues alike."""
        if not self._held.get(service.name):
            return
        place = TopicPartition(loop.names.name(loop.decider.log), 0)
        whole = fold_log(self._broker.connect("check"), loop.decider, place)
        if whole.next_seq != loop.next_seq:
            raise Violation(f"{service.name}: the snapshot leads to seq {loop.next_seq}")
        if service.fingerprint(whole.state) != service.fingerprint(loop.state):
            raise Violation(f"{service.name}: a snapshot differs from the log")


class SnapshotLog:
    """The log of `gangline_bus.snapshot`: no snapshot is ever passed over here."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def info(self, event: str, **_: object) -> None:
        self._engine.count(event)

    def warning(self, event: str, **fields: object) -> None:
        raise Violation(f"{event}: {fields}")
