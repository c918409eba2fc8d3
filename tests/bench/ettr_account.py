"""Where the time of a run with failures went, from what it reported. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from gangline_checkpoints.core.policy.ettr import Costs, Parts


@dataclass(frozen=True, slots=True)
class Step:
    """One step of rank 0 and when it had been taken."""

    attempt: int
    step: int
    ended_s: float


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint of this step: how long its ranks wrote it, and when it was committed."""

    attempt: int
    step: int
    write_s: float
    committed_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """When the attempt was killed, and when the platform knew."""

    attempt: int
    at_s: float
    noticed_s: float


@dataclass(frozen=True, slots=True)
class Account:
    """The run's parts, and what a prediction for the same run needs.

    `step_s`: the mean of the steps beside which nothing was written, so what a step takes when
    nothing happens. `costs`: the means of this run; `gaps` between kills; `rest_s` after the last.
    """

    step_s: float
    progress: int
    parts: Parts
    costs: Costs
    interval_s: float
    gaps: tuple[float, ...]
    rest_s: float


def account(
    steps: Sequence[Step], saves: Sequence[Saved], kills: Sequence[Kill], mttf_s: float
) -> Account:
    """The parts of the time from the first of these steps to the last; they add up to it.

    The first is a step that was saved. Attempts come in order, each but the last with its kill.
    Raises ValueError where nothing was killed, no step was undisturbed or no two saves were close.
    """
    by_attempt: dict[int, list[Step]] = {}
    for item in steps:
        by_attempt.setdefault(item.attempt, []).append(item)
    ended = {(item.attempt, item.step): item.ended_s for item in steps}
    begun = sorted((s.attempt, ended[s.attempt, s.step], s) for s in saves)
    quiet, beside = _durations(by_attempt, [(at, at + save.write_s) for _, at, save in begun])
    distances = [b[1] - a[1] for a, b in pairwise(begun) if a[0] == b[0]]
    if not (kills and quiet and distances):
        raise ValueError("too little happened in this run")
    step_s = fmean(quiet)
    saving_s = sum(beside) - len(beside) * step_s
    lost_s = detecting_s = restarting_s = 0.0
    for kill, (before, after) in zip(kills, pairwise(by_attempt.values()), strict=True):
        lost_steps = before[-1].step - (after[0].step - 1)
        lost_s += lost_steps * step_s + kill.at_s - before[-1].ended_s
        detecting_s += kill.noticed_s - kill.at_s
        restarting_s += after[0].ended_s - step_s - kill.noticed_s
    first, last = steps[0], steps[-1]
    progress = last.step - first.step
    moments = [first.ended_s, *(kill.at_s for kill in kills)]
    return Account(
        step_s=step_s,
        progress=progress,
        parts=Parts(progress * step_s, saving_s, lost_s, detecting_s, restarting_s),
        costs=Costs(
            mttf_s=mttf_s,
            save_s=max(0.0, saving_s) / len(begun),
            commit_s=fmean(save.committed_s - at for _, at, save in begun),
            detect_s=detecting_s / len(kills),
            restart_s=restarting_s / len(kills),
        ),
        interval_s=fmean(distances),
        gaps=tuple(b - a for a, b in pairwise(moments)),
        rest_s=last.ended_s - kills[-1].at_s,
    )


def _durations(
    by_attempt: dict[int, list[Step]], windows: Sequence[tuple[float, float]]
) -> tuple[list[float], list[float]]:
    """How long steps took beside which nothing was written, and the others; no attempt's first."""
    quiet, beside = [], []
    for of_attempt in by_attempt.values():
        for before, after in pairwise(of_attempt):
            overlaps = any(a < after.ended_s and b > before.ended_s for a, b in windows)
            (beside if overlaps else quiet).append(after.ended_s - before.ended_s)
    return quiet, beside
