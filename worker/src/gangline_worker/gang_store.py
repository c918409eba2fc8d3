"""What the ranks of a gang say by its rendezvous store: little at a start, nothing in steps."""

from __future__ import annotations

import os
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


def rank_0_says(number: int) -> int:
    """The number that rank 0 gives, on all ranks; every rank must call it. 4 messages a rank.

    Rank 0 may host the store, so it waits until all have read.

    Raises:
        RuntimeError: a rank or the store went away, or did not come in the store's time-out.
    """
    store, rank = gang_store(f"said/{next(_said)}"), dist.get_rank()
    if rank == 0:
        store.set("number", str(number))
    said = int(store.get("number"))
    if store.add("read", 1) == dist.get_world_size():
        store.set("all_read", "")
    if rank == 0:
        store.wait(["all_read"])
    return said
