"""Samples that a run goes without, by their places in the endless order.

A position counts the samples that were used, so it says no more where in the order it is once
some are left out. `LeftOut` gives the one for the other; both are the same on every rank and at
every world size. A sample is left out in its epoch alone: in the next one it has another place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic import TypeAdapter

from gangline_schemas.events.workers import LEFT_OUT_RANGES, SampleRange
from gangline_worker.data.order import rank_share
from gangline_worker.data.samples import Batch, Samples

LEFT_OUT_ENV: Final = "GANGLINE_LEFT_OUT"
_RANGES: Final = TypeAdapter(tuple[SampleRange, ...])


@dataclass(frozen=True)
class LeftOut:
    """`ranges` are in ascending order, and neither overlap nor touch: made by `join`."""

    ranges: tuple[SampleRange, ...] = ()

    @property
    def count(self) -> int:
        """How many samples it are."""
        return sum(part.count for part in self.ranges)

    def join(self, more: Iterable[SampleRange]) -> LeftOut:
        """These and others."""
        joined: list[SampleRange] = []
        for part in sorted((*self.ranges, *more), key=lambda part: part.first):
            last = joined[-1] if joined else None
            if last is None or last.first + last.count < part.first:
                joined.append(part)
                continue
            count = max(last.count, part.first + part.count - last.first)
            joined[-1] = SampleRange(first=last.first, count=count)
        return LeftOut(tuple(joined))

    def place(self, position: int) -> int:
        """Where in the order the sample is that is used once `position` others were."""
        for part in self.ranges:
            if part.first > position:
                break
            position += part.count
        return position

    def position(self, place: int) -> int:
        """How many samples before a place in the order are used."""
        gone = (min(part.count, max(0, place - part.first)) for part in self.ranges)
        return place - sum(gone)

    def runs(self, position: int, count: int) -> Iterator[tuple[int, int]]:
        """Where the next `count` samples lie: (first place, how many) of each unbroken run."""
        place = self.place(position)
        ahead = [part for part in self.ranges if part.first > place]
        for part in ahead:
            here = min(count, part.first - place)
            if here:
                yield place, here
            count -= here
            if not count:
                return
            place = part.first + part.count
        yield place, count

    def batch(
        self, samples: Samples, position: int, size: int, rank: int, world_size: int
    ) -> Batch:
        """A rank's part of the global batch of `size` samples that are used from `position` on.

        Raises what reading raises, and BatchError: `size` does not divide by `world_size`.
        """
        (place, run), *more = self.runs(position, size)
        if not more:
            return samples.batch(place, run, rank, world_size)
        share = rank_share(size, world_size)
        parts = [
            samples.batch(place, run, 0, 1)
            for place, run in self.runs(position + rank * share, share)
        ]
        return Batch(
            inputs=np.concatenate([part.inputs for part in parts]),
            targets=np.concatenate([part.targets for part in parts]),
        )


def widened(known: LeftOut, used: range, *, samples_max: int) -> LeftOut | None:
    """With more samples, those of the positions `used`.

    None if that were more than `samples_max` samples, or than LEFT_OUT_RANGES ranges.
    """
    runs = known.runs(used.start, len(used))
    more = known.join(SampleRange(first=place, count=run) for place, run in runs)
    fits = more.count <= samples_max and len(more.ranges) <= LEFT_OUT_RANGES
    return more if fits else None


def used_in(steps: range, *, before: int, size: int, began: tuple[int, int]) -> range:
    """The positions of the samples that some steps took, and the `before` steps before them.

    Steps count from 1. The attempt `began` at this (step, position) and took `size` in each since;
    earlier ones are none of it.
    """
    step, position = began
    first = max(step, steps[0] - 1 - before)
    return range(position + (first - step) * size, position + (steps[-1] - step) * size)


def left_out_of_job() -> LeftOut:
    """The samples that the job leaves out, as this rank's agent names them."""
    named = os.environ.get(LEFT_OUT_ENV)
    return LeftOut().join(_RANGES.validate_json(named)) if named else LeftOut()
