"""Compares the scores of two versions, item by item. numpy is loaded with the first bootstrap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

from gangline_registry.core.model import Compare
from gangline_schemas.models import MeanDifference, Paired, SuiteComparison

BOOTSTRAPPED = 20_000
"""Means of more items are normal enough: their bounds come from the standard error."""
_AT_ONCE = 4_000_000


def compare(
    asked: Compare, candidate: Mapping[str, float], baseline: Mapping[str, float]
) -> SuiteComparison:
    """Counts of items if all scores are 0 or 1, else bounds of the mean difference."""
    both = sorted(candidate.keys() & baseline.keys())
    fields = {
        "suite": asked.suite,
        "candidate": asked.candidate.digest,
        "baseline": asked.baseline.digest,
        "unpaired": len(candidate) + len(baseline) - 2 * len(both),
    }
    if not both:
        return SuiteComparison(**fields, problem="the evaluations have no items in common")
    differences = [candidate[name] - baseline[name] for name in both]
    if asked.candidate.binary and asked.baseline.binary:
        paired = Paired(
            items=len(both),
            wins=sum(one > 0 for one in differences),
            losses=sum(one < 0 for one in differences),
        )
        return SuiteComparison(**fields, paired=paired)
    low, high = _bounds(differences, asked)
    means = MeanDifference(
        items=len(both),
        difference=math.fsum(differences) / len(both),
        low=low,
        high=high,
        confidence=asked.confidence,
        seed=asked.seed,
        resamples=asked.resamples,
    )
    return SuiteComparison(**fields, means=means)


def _bounds(differences: list[float], asked: Compare) -> tuple[float, float]:
    """One-sided lower and upper bounds of the mean: percentile bootstrap, or normal."""
    count = len(differences)
    mean = math.fsum(differences) / count
    if count > BOOTSTRAPPED:
        variance = math.fsum((one - mean) ** 2 for one in differences) / (count - 1)
        half = NormalDist().inv_cdf(asked.confidence) * math.sqrt(variance / count)
        return mean - half, mean + half
    import numpy as np

    values = np.asarray(differences)
    random = np.random.default_rng(asked.seed)
    means = np.empty(asked.resamples)
    step = max(1, _AT_ONCE // count)
    for start in range(0, asked.resamples, step):
        size = min(step, asked.resamples - start)
        means[start : start + size] = values[random.integers(0, count, (size, count))].mean(1)
    low, high = np.quantile(means, (1 - asked.confidence, asked.confidence))
    return float(low), float(high)
