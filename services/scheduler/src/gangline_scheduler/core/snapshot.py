"""How the scheduler's state is kept in a snapshot, and its canonical form for golden logs.

Facts are stored, and the orders in which jobs wait and gangs were started, since decisions follow
them. Free and used resources are derived from the nodes and jobs again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gangline_bus.canonical import Fields, canonical_json
from gangline_bus.state_json import DataclassCodec, unchanged
from gangline_scheduler.core import usage
from gangline_scheduler.core.indexes import reindex
from gangline_scheduler.core.state import State

DERIVED = frozenset(
    {
        "queue",
        "free",
        "empty",
        "cpu_queue",
        "used",
        "used_models",
        "used_cpus",
        "restarting",
        "failed",
        "unreservable",
    }
)
CONFIGURED = frozenset({"levels", "mix_from"})
ORDERS = frozenset({"pending", "live", "cpu_pending", "cpu_live"})

VERSION = 3
"""The format of the state: docs/guides/upgrades.md says when to count it up.

Version 1 knew no jobs without GPUs, version 2 no loopback of nodes.
"""


def codec(initial: Callable[[], State]) -> DataclassCodec[State]:
    """Implements `SnapshotCodec[State]`; `initial` is the decider's, with its levels and order."""
    return DataclassCodec(
        initial,
        version=VERSION,
        converters={1: unchanged, 2: unchanged},
        left_out=DERIVED | CONFIGURED,
        rebuild=rebuild,
        derived=_derived,
    )


def _derived(state: State) -> Iterable[str]:
    """Free resources, used ones and the queue, whatever the order in which they came to be."""
    yield from sorted(f"free {node!r}" for node in state.free.nodes())
    yield from sorted(f"empty {node!r}" for node in state.empty.nodes())
    yield from sorted(f"used {team} {gpus}" for team, gpus in state.used.items() if gpus)
    yield from sorted(f"used {key} {gpus}" for key, gpus in state.used_models.items() if gpus)
    yield from sorted(f"used CPUs {team} {cpus}" for team, cpus in state.used_cpus.items() if cpus)
    yield from sorted(f"restarting {job_id}" for job_id in state.restarting)
    yield from sorted(f"failed {node_id} {at}" for node_id, at in state.failed.items())


def rebuild(state: State) -> None:
    """Derive what is left out of a snapshot, in place. O(nodes + jobs)."""
    reindex(state)
    failed = [
        (node.down_at, node_id)
        for node_id, node in state.nodes.items()
        if node.down == "failed" and node.down_at is not None
    ]
    state.failed = {node_id: at for at, node_id in sorted(failed)}
    for job_id in state.pending:
        if state.jobs[job_id].restarting:
            state.restarting[job_id] = None
    usage.recount(state)


def canonical(state: State, known: Fields | None = None) -> bytes:
    """The facts alone, as later versions with more fields write them too; see `canonical_json`."""
    return canonical_json(state, left_out=DERIVED | CONFIGURED | ORDERS, known=known)


fingerprint = codec(State).fingerprint
"""sha256 in hex over the state: equal for a replay of the same log."""
