"""`python -m gangline_worker.steps.compare`: a candidate against a baseline, as page and JSON.

- in: `scores`, as `evaluate` leaves it with a baseline. If they are given: `history` and
  `baseline_history` of the trainer, `serving` and `baseline_serving` of `export`.
- out: `report` (folder): `report.json` and `report.html`; `difference` (score): the mean over all
  suites of candidate less baseline.

For each suite: both means, their difference, and its interval at 95 % by a paired bootstrap over
the items that both have (percentiles of 2,000 resamples, Efron and Tibshirani, 1993).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gangline_worker.data.step_inputs import find
from gangline_worker.steps.comparison_page import page, word
from gangline_worker.steps.folders import (
    StepError,
    given,
    leave_score,
    output,
    read_json,
    write_json,
)

RESAMPLES = 2000
CONFIDENCE = 0.95
_SEED = 17
_LEAST_ITEMS = 20
_AT_ONCE = 1_000_000
_SERVING = ("size_bytes", "memory_bytes", "load_s")


def compared(candidate: dict[str, float], baseline: dict[str, float]) -> dict[str, Any]:
    """Two models on the items that both have. Raises StepError if there are too few."""
    common = sorted(candidate.keys() & baseline.keys())
    if len(common) < _LEAST_ITEMS:
        raise StepError(f"both have {len(common)} items; at least {_LEAST_ITEMS} are needed")
    ours = np.array([candidate[item] for item in common])
    theirs = np.array([baseline[item] for item in common])
    differences = ours - theirs
    random = np.random.default_rng(_SEED)
    means = np.empty(RESAMPLES)
    size = max(1, _AT_ONCE // len(common))  # the same draws as all at once, in little memory
    for start in range(0, RESAMPLES, size):
        count = min(size, RESAMPLES - start)
        draws = random.integers(0, len(common), (count, len(common)))
        means[start : start + count] = differences[draws].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return {
        "items": len(common),
        "unpaired": len(candidate.keys() ^ baseline.keys()),
        "candidate": float(ours.mean()),
        "baseline": float(theirs.mean()),
        "difference": float(differences.mean()),
        "low": float(low),
        "high": float(high),
        "wins": int((differences > 0).sum()),
        "losses": int((differences < 0).sum()),
    }


def main(_arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit code."""
    try:
        scores = given("scores")
        suites = {}
        for file in sorted((scores / "candidate").glob("*.json")):
            other = scores / "baseline" / file.name
            if not other.is_file():
                raise StepError("scores has no baseline; give `evaluate` an input `baseline`")
            suites[file.stem] = compared(_items(file), _items(other))
        if not suites:
            raise StepError("scores has no suite")
        difference = sum(one["difference"] for one in suites.values()) / len(suites)
        found = {"suites": suites, "difference": difference, **courses()}
        folder = output("report")
        if folder is not None:
            write_json(folder / "report.json", found)
            (folder / "report.html").write_text(page(found))
        leave_score("difference", difference)
    except StepError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for name, one in suites.items():
        sys.stdout.write(f"{name}: {one['difference']:+.4f} ({word(one)})\n")
    return 0


def courses() -> dict[str, Any]:
    """The curves, and the costs of training and serving, of both models; without those not given.

    Raises StepError.
    """
    curves: dict[str, Any] = {}
    costs: dict[str, Any] = {}
    for who, before in (("candidate", ""), ("baseline", "baseline_")):
        history, serving = find(f"{before}history"), find(f"{before}serving")
        cost: dict[str, float] = {}
        if history is not None:
            held = read_json(history / "history.json")
            curves[who] = held["curves"]
            cost |= {"rank_hours": held["cost"]["rank_hours"]}
        if serving is not None:
            held = read_json(serving / "serving.json")
            cost |= {name: held[name] for name in _SERVING if name in held}
            for latency in held.get("latencies", ()):
                cost[f"p99_ms_batch_{latency['batch']}"] = latency["p99_ms"]
        if cost:
            costs[who] = cost
    return {"curves": curves, "costs": costs}


def _items(file: Path) -> dict[str, float]:
    found: dict[str, float] = read_json(file)["items"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
