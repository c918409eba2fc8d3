"""One small exchange between two steps: what all ranks must know, and do alike."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class StepNews:
    """What one rank tells the others between two steps. All are sent as float64."""

    loss: float
    data_wait_s: float
    stop: bool = False  # it was asked to save and leave
    lost: bool = False  # its agent is gone: nothing it saves can count
    wants_checkpoint: bool = False
    saving: bool = False  # saves before it are still being written, or wait for the store
    failed_saves: int = 0
    has_loss: bool = True  # the model ends on this rank; else `loss` does not count
    bad_weights: bool = False  # those that it was to save are not finite
    waits: bool = False  # it does not have its next batch yet
    no_data: bool = False  # it never will: reading it failed


@dataclass(frozen=True)
class StepSummary:
    """What every rank concludes from all news; the same on each of them."""

    loss: float  # mean over ranks that have one, summed in the order of ranks; NaN if none has
    data_wait_s: float  # the longest
    stop: bool
    lost: bool
    wants_checkpoint: bool
    saving: bool
    failed_saves: int
    bad_weights: bool
    waits: bool
    no_data: bool


def summarize(news: list[StepNews]) -> StepSummary:
    """Join the news of all ranks, given by rank."""
    losses = [one.loss for one in news if one.has_loss]
    return StepSummary(
        loss=sum(losses) / len(losses) if losses else math.nan,
        data_wait_s=max(one.data_wait_s for one in news),
        stop=any(one.stop for one in news),
        lost=any(one.lost for one in news),
        wants_checkpoint=any(one.wants_checkpoint for one in news),
        saving=any(one.saving for one in news),
        failed_saves=sum(one.failed_saves for one in news),
        bad_weights=any(one.bad_weights for one in news),
        waits=any(one.waits for one in news),
        no_data=any(one.no_data for one in news),
    )


def exchange(news: StepNews, group: dist.ProcessGroup) -> StepSummary:
    """Tell all ranks of a group and hear them; one all-gather of 88 bytes."""
    size = dist.get_world_size(group)
    mine = torch.tensor([float(value) for value in astuple(news)], dtype=torch.float64)
    rows = torch.empty(size * len(mine), dtype=torch.float64)
    dist.all_gather_into_tensor(rows, mine, group=group)
    return summarize([_from_row(row) for row in rows.view(size, -1).tolist()])


def _from_row(row: list[float]) -> StepNews:
    loss, data_wait_s, stop, lost, wants, saving, failed, has_loss, bad, waits, no_data = row
    return StepNews(
        loss,
        data_wait_s,
        bool(stop),
        bool(lost),
        bool(wants),
        bool(saving),
        int(failed),
        bool(has_loss),
        bool(bad),
        bool(waits),
        bool(no_data),
    )


def all_agree(group: dist.ProcessGroup, *, ok: bool) -> bool:
    """Whether every rank says so."""
    flag = torch.tensor([int(ok)])
    dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=group)
    return bool(flag.item())
