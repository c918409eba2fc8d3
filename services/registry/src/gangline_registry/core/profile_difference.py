"""Which columns of two profiles differ: by sizes of effects, never by p-values alone.

The sampling noise of the two tables is added to each limit: noise = sqrt(1 / rows + 1 / rows).
So small tables raise no alarm. Of large ones only differences that matter do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gangline_schemas.gate_file import DriftLimits
from gangline_schemas.models import ColumnDrift
from gangline_schemas.profile import (
    CategoryColumn,
    Column,
    NumberColumn,
    Profile,
    Sketch,
    TextColumn,
)

_SHIFT_NOISE, _KS_NOISE, _PSI_NOISE, _MISSING_NOISE = 5.0, 2.7, 4.0, 2.5
"""Multiples of the noise: about one in a million columns of equal tables is beyond."""
_CAP = 1e6
_SMOOTH = 0.5
"""Rows that each value has besides its own, so that one without rows has a share."""
_WORDS = {"category", "text"}
"""Kinds of one column of words: which one it is depends on the number of rows."""


def differences(trained: Profile, newest: Profile, limits: DriftLimits) -> list[ColumnDrift]:
    """The columns that moved, the farthest first. Cost: O(columns)."""
    before = {one.name: one for one in trained.columns}
    after = {one.name: one for one in newest.columns}
    found = [
        ColumnDrift(column=name, kind=before[name].kind, reasons=("the column is gone",))
        for name in before.keys() - after.keys()
    ]
    found += [
        ColumnDrift(column=name, kind=after[name].kind, reasons=("the column is new",))
        for name in after.keys() - before.keys()
    ]
    for name in before.keys() & after.keys():
        moved = _moved(before[name], after[name], trained.rows, newest.rows, limits)
        if moved.reasons:
            found.append(moved)
    return sorted(found, key=lambda one: (-_size(one), one.column))


def _size(one: ColumnDrift) -> float:
    return max(abs(one.shift), one.ks, one.psi, abs(one.missing)) or _CAP


def _moved(
    before: Column, after: Column, rows: int, other_rows: int, limits: DriftLimits
) -> ColumnDrift:
    if {before.kind, after.kind} == _WORDS:
        return ColumnDrift(column=before.name, kind=after.kind)
    if before.kind != after.kind:
        reason = f"was a {before.kind} and is a {after.kind}"
        return ColumnDrift(column=before.name, kind=after.kind, reasons=(reason,))
    noise = math.sqrt(1 / max(1, rows) + 1 / max(1, other_rows))
    missing = after.missing / max(1, other_rows) - before.missing / max(1, rows)
    reasons = []
    if abs(missing) > limits.missing + _MISSING_NOISE * noise:
        reasons.append(f"the share of missing values moved by {missing:+.1%}")
    shift = ks = psi = 0.0
    match before, after:
        case ((NumberColumn() | TextColumn()), (NumberColumn() | TextColumn())):
            shift, ks = _numbers(before.sketch, after.sketch)
            reasons += _of_numbers(shift, ks, noise, limits)
        case CategoryColumn(), CategoryColumn():
            psi, kinds = stability(before, after)
            if psi > limits.psi + _PSI_NOISE * kinds * noise * noise:
                reasons.append(f"the shares of its values moved: PSI {psi:.3g}")
    return ColumnDrift(
        column=before.name, kind=before.kind, shift=shift, ks=ks, psi=psi, missing=missing,
        reasons=tuple(reasons),
    )  # fmt: skip


def _of_numbers(shift: float, ks: float, noise: float, limits: DriftLimits) -> Iterator[str]:
    if abs(shift) > limits.shift + _SHIFT_NOISE * noise:
        yield f"the mean moved by {shift:+.3g} standard deviations"
    if ks > limits.ks + _KS_NOISE * noise:
        yield f"the distribution moved: largest difference {ks:.3g}"


def _numbers(before: Sketch, after: Sketch) -> tuple[float, float]:
    """The standardised difference of the means, and the largest of the distributions."""
    if not before.quantiles or not after.quantiles:
        return 0.0, float(bool(before.quantiles) != bool(after.quantiles))
    gap = after.mean - before.mean
    spread = before.std or after.std
    if spread > 0:
        shift = max(-_CAP, min(_CAP, gap / spread))
    else:
        shift = 0.0 if gap == 0 else math.copysign(_CAP, gap)
    one, other = _rising(before), _rising(after)
    places = np.concatenate([one, other])
    return shift, float(np.abs(_shares(one, places) - _shares(other, places)).max())


def _rising(sketch: Sketch) -> np.ndarray:
    """The quantiles, at least two: a producer may send any number of them."""
    found = np.sort(np.asarray(sketch.quantiles))
    return np.repeat(found, 2) if len(found) == 1 else found


def _shares(quantiles: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The share of values up to each place; between two quantiles it grows evenly."""
    shares = np.linspace(0.0, 1.0, len(quantiles))
    index = np.searchsorted(quantiles, places, side="right") - 1
    low = np.clip(index, 0, len(quantiles) - 1)
    high = np.minimum(low + 1, len(quantiles) - 1)
    width = quantiles[high] - quantiles[low]
    part = np.divide(places - quantiles[low], width, out=np.zeros_like(places), where=width > 0)
    inside = shares[low] + np.clip(part, 0, 1) * (shares[high] - shares[low])
    return np.where(index < 0, 0.0, inside)


def stability(before: CategoryColumn, after: CategoryColumn) -> tuple[float, int]:
    """The population stability index, and the number of values behind it.

    A value that one profile does not list has no rows there, if that profile lists all of its
    values. Otherwise it may be among the rare ones, and all such values are one group.
    """
    names = [
        name
        for name in before.counts.keys() | after.counts.keys()
        if (name in before.counts or not before.other) and (name in after.counts or not after.other)
    ]
    one = [before.counts.get(name, 0) for name in names]
    other = [after.counts.get(name, 0) for name in names]
    one.append(before.other + sum(before.counts.values()) - sum(one))
    other.append(after.other + sum(after.counts.values()) - sum(other))
    total, other_total = sum(one), sum(other)
    if not total or not other_total:
        return (0.0, 0) if total == other_total else (_CAP, 1)
    index = 0.0
    for count, other_count in zip(one, other, strict=True):
        share = (count + _SMOOTH) / (total + _SMOOTH * len(one))
        other_share = (other_count + _SMOOTH) / (other_total + _SMOOTH * len(one))
        index += (other_share - share) * math.log(other_share / share)
    return index, len(names)
