"""One small exchange between two steps: facts that all ranks must know, and decisions alike.

Rank 0 gathers the news of the others and sends all the decision: 2 messages a rank. In an
all-gather each row goes by way of all ranks: 64 on two cores take 13 times as long for it
(tests/bench/bench_agreement.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import TypeVar, get_type_hints

import torch
import torch.distributed as dist

Rows = list[list[float]]
T = TypeVar("T", bound="StepNews | StepSummary")


@dataclass(frozen=True)
class StepNews:
    """The news of one rank between two steps. All are sent as float64."""

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
    """The conclusion from all news; the same on every rank."""

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
    """Send a rank's news and receive the decision; 168 bytes a rank, both ways together."""

    def join(rows: Rows) -> list[float]:
        return _row(summarize([_of(StepNews, row) for row in rows]))

    return _of(StepSummary, _joined(_row(news), join, len(_TYPES[StepSummary]), group))


def all_agree(group: dist.ProcessGroup, *, ok: bool) -> bool:
    """Whether every rank says so."""
    (found,) = _joined([float(ok)], lambda rows: [float(all(row[0] for row in rows))], 1, group)
    return bool(found)


def all_same(group: dist.ProcessGroup, value: float) -> bool:
    """Whether every rank gives this value."""
    (found,) = _joined([value], lambda rows: [float(all(row == rows[0] for row in rows))], 1, group)
    return bool(found)


def _joined(
    mine: list[float], join: Callable[[Rows], list[float]], size: int, group: dist.ProcessGroup
) -> list[float]:
    """Rank 0's result of `join` over the rows of all ranks: `size` numbers, the same on each."""
    row = torch.tensor(mine, dtype=torch.float64)
    if group.rank() == 0:
        rows = [torch.empty_like(row) for _ in range(group.size())]
        group.gather([rows], [row]).wait()
        found = torch.tensor(join([one.tolist() for one in rows]), dtype=torch.float64)
    else:
        group.gather([], [row]).wait()
        found = torch.empty(size, dtype=torch.float64)
    group.broadcast([found]).wait()
    return list(found.tolist())


_TYPES: Mapping[type[object], tuple[type, ...]] = {
    kind: tuple(get_type_hints(kind).values()) for kind in (StepNews, StepSummary)
}


def _row(values: StepNews | StepSummary) -> list[float]:
    return [float(value) for value in astuple(values)]


def _of(kind: type[T], row: list[float]) -> T:
    return kind(*(type_(value) for type_, value in zip(_TYPES[kind], row, strict=True)))
