"""Safeguards that can be taken away here, to prove that the simulator would notice.

Each is taken away by a subclass or a patch of the real part, never by a switch in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gangline_bus.decider import DeciderLoop
from gangline_bus.decision import Decision
from gangline_bus.memory import MemoryBus
from gangline_bus.memory_broker import Status
from gangline_bus.memory_clients import MemoryReader, MemoryTransactionalWriter
from gangline_bus.poison import Guard
from gangline_bus.ports import BusError, Fenced, Note, OutRecord, Record, TopicPartition
from gangline_checkpoints.core import decide as checkpoints_decide
from gangline_checkpoints.core import evolve as checkpoints_evolve
from gangline_checkpoints.core import references
from gangline_checkpoints.core import state as checkpoints_state
from gangline_checkpoints.core.reports import Reported
from gangline_checkpoints.service import executor as checkpoints_executor
from gangline_checkpoints.service.executor import StoreExecutor
from gangline_faults.core.policy import silence
from gangline_quota.core import decide as quota_decide
from gangline_quota.core.state import State as QuotaState
from gangline_scheduler.core import allocate as scheduler_allocate
from gangline_scheduler.core.model import Demand
from gangline_schemas.base import Event
from gangline_schemas.events.checkpoints import AttemptNoted
from gangline_schemas.events.requests import JobSubmitted
from gangline_worker.agent.decide.core import AgentCore
from gangline_worker.agent.decide.gang import Gang
from gangline_worker.agent.decide.membership import AgentLimits
from gangsim import effects
from gangsim.bus import SimBroker
from gangsim.parts import HEARTBEAT_S, Parts

Commit = Callable[[Sequence[OutRecord], Mapping[TopicPartition, int], str, Note | None], None]
REPAIRS = 3


@dataclass(frozen=True, slots=True)
class Ablation:
    """One safeguard: how to take it away, and the kinds of faults that need it.

    `full_every` above 1: it is one of incremental saves. Seeds before `first_seed` are known to
    have no run that needs it.
    """

    what: str
    parts: Callable[[], Parts]
    kinds: tuple[str, ...]
    full_every: int = 1
    first_seed: int = 0


class _UnfencedBus(MemoryBus):
    """Each process has a transactional id of its own, so no process fences another."""

    def transactional_writer(self, transactional_id: str) -> MemoryTransactionalWriter:
        return super().transactional_writer(f"{transactional_id}.{self.client}")


class _UnfencedBroker(SimBroker):
    def connect(self, client: str) -> MemoryBus:
        return _UnfencedBus(self, client)


class _DirtyReader(MemoryReader):
    """Gives out pending and aborted records too."""

    def poll(self, max_records: int, timeout_s: float) -> list[Record]:
        found: list[Record] = []
        broker = self._bus.broker
        broker.faults.at("poll", self._bus.client)
        for place in () if broker.down else sorted(self._positions):
            entries = broker.log(place)[self._positions[place] :]
            found += [entry.record for entry in entries if entry.status is not Status.CONTROL]
            self._positions[place] += len(entries)
        return found


class _DirtyBus(MemoryBus):
    def reader(self, name: str, *, patient: bool = False) -> MemoryReader:
        return _DirtyReader(self)


class _DirtyBroker(SimBroker):
    def connect(self, client: str) -> MemoryBus:
        return _DirtyBus(self, client)


class _OffsetsApartLoop(DeciderLoop[Any]):
    """Commits the offsets by themselves, as a plain consumer does."""

    def take_over(self) -> None:
        super().take_over()
        commit: Commit = self._writer.commit

        def apart(
            records: Sequence[OutRecord], offsets: Mapping[TopicPartition, int], group: str
        ) -> None:
            for place, offset in offsets.items():
                self._bus.broker.keep_offset(group, place, offset)
            commit(records, {}, group)

        self._writer.commit = apart  # type: ignore[method-assign]


class _BeginningLoop(DeciderLoop[Any]):
    """Reads inputs from their start where Kafka does not know how far they were decided."""

    def _start_positions(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        positions, behind = super()._start_positions()
        committed = self._bus.committed(self._shard.group, positions)
        unknown = [
            at for at, to in committed.items() if to is None and at.topic not in self._shard.signals
        ]
        return positions | self._bus.start_offsets(unknown), behind


class _RepairingLoop(DeciderLoop[Any]):
    """After a failed commit: abort, and commit the same batch again with the same writer."""

    def take_over(self) -> None:
        super().take_over()
        writer = self._writer
        commit: Commit = writer.commit

        def repaired(
            records: Sequence[OutRecord],
            offsets: Mapping[TopicPartition, int],
            group: str,
            note: Note | None = None,
        ) -> None:
            for attempt in range(REPAIRS):
                try:
                    commit(records, offsets, group, note)
                    return
                except BusError as error:
                    newer = isinstance(error, Fenced) and "newer" in str(error)
                    if newer or attempt == REPAIRS - 1:
                        raise
                    writer.close()

        writer.commit = repaired  # type: ignore[method-assign]


class _OverlappingCore(AgentCore):
    """Starts a gang while ranks of an older attempt, or on the same GPUs, still run."""

    def _may_spawn(self, gang: Gang) -> bool:
        ready = gang.prepared and (gang.store_open or not gang.hosts_store)
        return ready and not gang.over and not gang.failed and gang.stop is None


class _AnyAttempt(int):
    """An attempt number that every other one seems to equal, and none to be older than."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, int)

    def __gt__(self, other: int) -> bool:
        return False

    __hash__ = int.__hash__


def _note_any_attempt(state: checkpoints_state.CheckpointState, event: Event, at: datetime) -> None:
    _apply(state, event, at)
    if isinstance(event, AttemptNoted):
        state.jobs[event.job_id].attempt = _AnyAttempt(event.attempt)


def _submitted_anew(state: QuotaState, submitted: JobSubmitted, at: datetime) -> list[Decision]:
    return _submitted(replace(state, active={}, ended={}), submitted, at)


_apply = checkpoints_evolve.apply
_submitted = quota_decide._submitted


def _patched(*patches: tuple[object, str, object]) -> Callable[[], Parts]:
    return lambda: Parts(patches=patches)


ABLATIONS: dict[str, Ablation] = {
    "fencing": Ablation(
        "a new writer fences its predecessor",
        lambda: Parts(broker=_UnfencedBroker),
        ("pause",),
    ),
    "offsets": Ablation(
        "offsets are part of the transaction",
        lambda: Parts(loop=_OffsetsApartLoop),
        ("crash",),
    ),
    "named-inputs": Ablation(
        "the log itself says which inputs are decided",
        lambda: Parts(loop=_BeginningLoop),
        ("forget", "user.restore", "rank.crash"),
    ),
    "crash-only": Ablation(
        "a process ends after a failed commit",
        lambda: Parts(loop=_RepairingLoop),
        ("leak",),
    ),
    "read-committed": Ablation(
        "only committed records are read",
        lambda: Parts(broker=_DirtyBroker),
        ("crash",),
    ),
    "whole-workers": Ablation(
        "a worker of several GPUs never crosses a node",
        _patched(
            (Demand, "whole", lambda _, gpus: gpus),
            (scheduler_allocate, "whole_workers", lambda _: []),
        ),
        ("rank.crash",),
    ),
    "duplicates": Ablation(
        "a repeated submission is recognised",
        _patched((quota_decide, "_submitted", _submitted_anew)),
        ("user.again", "duplicate"),
    ),
    "mass-silence": Ablation(
        "nobody is declared dead when all are silent",
        _patched((silence, "MASS_NODES", 10**6)),
        ("silence",),
    ),
    "poison": Ablation(
        "an input that ended the service twice is passed over",
        _patched((Guard, "poison", lambda self, record: None)),
        ("poison",),
    ),
    "poison-silent": Ablation(
        "after a death before it caught up a process decides its inputs one by one",
        _patched((Guard, "cautious", False)),
        ("poison",),
    ),
    "lease": Ablation(
        "an agent that is cut off kills its ranks",
        lambda: Parts(limits=AgentLimits(HEARTBEAT_S, 1e9)),
        ("cut.send", "cut.receive"),
    ),
    "one-attempt": Ablation(
        "older attempts are gone before the newer one starts",
        lambda: Parts(agent=_OverlappingCore),
        ("rank.crash", "user.restore"),
    ),
    "attempt-check": Ablation(
        "an older attempt commits no checkpoint",
        _patched((checkpoints_decide, "apply", _note_any_attempt)),
        ("late", "agent.crash"),
        first_seed=18,
    ),
    "all-ranks": Ablation(
        "a checkpoint is committed when every rank has written its part (the first phase)",
        _patched(
            (Reported, "complete", lambda self, world_size, also=(): True),
            (checkpoints_executor, "coverage_problem", lambda manifests: None),
        ),
        ("late", "rank.crash"),
    ),
    "recall": Ablation(
        "a takeover reads again what ranks reported of open checkpoints",
        _patched((DeciderLoop, "_recall", lambda self, positions: None)),
        ("crash", "pause"),
    ),
    "commit-record": Ablation(
        "the record is in the store before the commit is in the log (the second phase)",
        _patched((StoreExecutor, "_put_record", lambda self, effect, referred: None)),
        ("store.away", "crash"),
    ),
    "verification": Ablation(
        "a checkpoint's bytes are read before it counts",
        _patched((StoreExecutor, "_check_bytes", lambda self, written, manifest: None)),
        ("store.damage",),
    ),
    "verification-on-read": Ablation(
        "a checkpoint's bytes are compared when an attempt starts from it",
        _patched((effects, "intact", lambda data, digest: True)),
        ("store.damage", "rank.crash"),
        first_seed=16,
    ),
    "references": Ablation(
        "retention counts references",
        _patched((references, "removable", lambda job, surplus, *, over: surplus)),
        ("rank.crash", "user.restore"),
        full_every=4,
    ),
}
