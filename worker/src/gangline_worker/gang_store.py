"""Messages of a gang's ranks by its rendezvous store: few at a start, none in steps."""

from __future__ import annotations

import os
from datetime import timedelta
from itertools import count

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

_said = count()


def gang_store(use: str) -> Store:
    """The store, with keys of its own for each use and attempt: torchrun gives attempts one store.

    Raises:
        ValueError: this process has joined no ranks.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"gangline/{attempt}/{use}", _get_default_store())


def from_rank_0(number: int) -> int:
    """The number that rank 0 gives, on all ranks; every rank must call it. 4 messages a rank.

    Rank 0 may host the store, so it waits until all have read.

    Raises:
        RuntimeError: a rank or the store went away, or did not come in the store's time-out.
    """
    store, rank = gang_store(f"said/{next(_said)}"), dist.get_rank()
    if rank == 0:
        store.set("number", str(number))
    said = int(store.get("number"))
    all_read = _count(store, "read", dist.get_world_size())
    if rank == 0:
        store.wait([all_read])
    return said


def meet(store: Store, world_size: int, timeout_s: float) -> None:
    """Wait until all ranks are here; every rank must call it. 3 messages a rank.

    Raises:
        RuntimeError: a rank did not come in `timeout_s`, or the store went away.
    """
    all_here = _count(store, "here", world_size)
    try:
        store.wait([all_here], timedelta(seconds=timeout_s))
    except dist.DistStoreError as error:
        here = store.add("here", 0)
        raise RuntimeError(f"{here} of {world_size} ranks came in {timeout_s:g} s") from error


def _count(store: Store, what: str, world_size: int) -> str:
    """Count this rank. The key that the store has once all ranks are counted."""
    if store.add(what, 1) == world_size:
        store.set(f"all_{what}", "")
    return f"all_{what}"
