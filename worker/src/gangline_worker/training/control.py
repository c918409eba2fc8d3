"""A gang's control group: how its ranks agree between steps, apart from training's own groups.

It is a gloo group whose connections are opened at their first use. An agreement goes to rank 0 and
comes back along a tree, so a gang of N ranks has fewer than 2 N connections. A full mesh has N * N,
which 1,024 ranks do not survive.

All of these connections are opened while the ranks meet. Later the group needs the rendezvous store
no more: its end, or that of the rank that hosts it, changes no agreement and no exit code.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import cast

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from gangline_worker.gang_store import meet
from gangline_worker.training.agreement import all_agree

_TIMEOUTS_OF_A_CONNECTION = 5
"""So many of a group's time-outs gloo waits for a connection that another rank opens."""


def open_control(store: Store, rank: int, world_size: int, timeout_s: float) -> dist.ProcessGroup:
    """Join the control group; every rank must call it. Its keys have the store to themselves.

    `timeout_s` bounds each wait: until all ranks are here, for a connection, and in an agreement.

    Raises:
        RuntimeError: a rank or the store went away, or did not come in time.
    """
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
    options._devices = [_device()]  # noqa: SLF001 -- the stubs call it `devices`, torch does not
    options._timeout = timedelta(seconds=timeout_s / _TIMEOUTS_OF_A_CONNECTION)  # noqa: SLF001
    gloo = dist.ProcessGroupGloo(store, rank, world_size, options)
    meet(store, world_size, timeout_s)
    group = cast("dist.ProcessGroup", gloo)  # the stubs give a backend no collectives
    all_agree(group, ok=True)  # opens the connections that all later agreements use
    gloo.set_timeout(timedelta(seconds=timeout_s))
    return group


def _device() -> dist.ProcessGroupGloo.Device:
    """Of the interface that gloo is configured to use, as in the groups that torch makes."""
    interface, *_ = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    if interface:
        return dist.ProcessGroupGloo.create_device(interface=interface, lazy_init=True)
    return dist.ProcessGroupGloo.create_default_device(lazy_init=True)
