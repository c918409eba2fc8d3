"""`python -m gangline_worker.steps.compare`: a candidate against a baseline, as page and JSON.

- in: `scores`, as `evaluate` leaves it with a baseline.
- out: `report` (folder): `report.json` and `report.html`; `difference` (score): the mean over all
  suites of candidate less baseline.

For each suite: both means, their difference, and its interval at 95 % by a paired bootstrap over
the items that both have (percentiles of 2,000 resamples, Efron and Tibshirani, 1993).
"""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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


def compared(candidate: dict[str, float], baseline: dict[str, float]) -> dict[str, Any]:
    """Two models on the items that both have. Raises StepError if there are too few."""
    common = sorted(candidate.keys() & baseline.keys())
    if len(common) < _LEAST_ITEMS:
        raise StepError(f"both have {len(common)} items; at least {_LEAST_ITEMS} are needed")
    ours = np.array([candidate[item] for item in common])
    theirs = np.array([baseline[item] for item in common])
    differences = ours - theirs
    draws = np.random.default_rng(_SEED).integers(0, len(common), (RESAMPLES, len(common)))
    means = differences[draws].mean(axis=1)
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


def page(suites: dict[str, dict[str, Any]]) -> str:
    """The report as a page."""
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{one['items']:,}</td>"
        f"<td>{one['candidate']:.4f}</td><td>{one['baseline']:.4f}</td>"
        f"<td>{one['difference']:+.4f}</td><td>{one['low']:+.4f} to {one['high']:+.4f}</td>"
        f"<td>{one['wins']:,} / {one['losses']:,}</td><td>{_word(one)}</td></tr>"
        for name, one in suites.items()
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Candidate and baseline</title>"
        "<style>body{font:16px system-ui;margin:2rem}td,th{padding:.3rem .8rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}</style><h1>Candidate and baseline</h1>"
        "<table><tr><th>Suite<th>Items<th>Candidate<th>Baseline<th>Difference<th>95 % interval"
        f"<th>Better / worse<th>Finding</tr>{rows}</table>\n"
    )


def _word(one: dict[str, Any]) -> str:
    if one["low"] > 0:
        return "better"
    return "worse" if one["high"] < 0 else "no difference found"


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
        folder = output("report")
        if folder is not None:
            write_json(folder / "report.json", {"suites": suites, "difference": difference})
            (folder / "report.html").write_text(page(suites))
        leave_score("difference", difference)
    except StepError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    for name, one in suites.items():
        sys.stdout.write(f"{name}: {one['difference']:+.4f} ({_word(one)})\n")
    return 0


def _items(file: Path) -> dict[str, float]:
    found: dict[str, float] = read_json(file)["items"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
