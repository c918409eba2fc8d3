"""Gates, case by case: each expected verdict was worked out by hand.

McNemar, one-sided at 95 %: 5:0 has p = 1/32 and passes, 4:0 has 1/16 and does not. 80:40 has
p = 0.0002, 60:45 has 0.086, 62:42 has 0.031. Tango with a margin of 1 point on 1,319 items: 10:10
has p = 0.0035, 50:50 has 0.095, 40:45 has 0.20; of 2 points: 50:60 has 0.06.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from gangline_registry.core.model import Approval, Registered, comparison_key
from gangline_registry.core.policy.judge import judge
from gangline_schemas.models import (
    CheckpointOf,
    MeanDifference,
    Paired,
    ServingReport,
    SuiteComparison,
    Verdict,
)
from support.builders.registry import MODEL, TEAM, evaluation, gate

AT = datetime(2026, 11, 26, tzinfo=UTC)
PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
BETTER, CLOSE = {"rule": "better"}, {"rule": "not_worse", "margin": 0.01}
LIMITS = {
    "formats": ["onnx"], "max_bytes": 100, "memory_bytes": 200, "load_s": 2.0, "p99_ms": 50.0,
    "difference": 0.01,
}  # fmt: skip
GOOD = {
    "format": "onnx", "size_bytes": 100, "memory_bytes": 200, "load_s": 2.0, "difference": 0.01,
    "latencies": [{"batch": 1, "p50_ms": 10, "p99_ms": 50}],
}  # fmt: skip


def version(number: int, **suites: Any) -> Registered:
    checkpoint = CheckpointOf(job_id=f"job-{number}", attempt=1, step=100)
    found = {name: one for name, one in suites.items() if one is not None}
    return Registered(TEAM, MODEL, number, checkpoint, None, "ben", "", AT, evaluations=found)


def candidate(tables: dict[str, Any], mean: float = 0.6, items: int = 1319) -> Registered:
    """A candidate whose scores were compared with `baseline`'s: wins and losses, or means."""
    made = version(2, **{name: evaluation(f"new {name}", items, mean) for name in tables})
    compared = {}
    for name, table in tables.items():
        if table is None:
            continue
        fields: dict[str, Any] = {"unpaired": 0}
        if isinstance(table, dict):
            fields |= table
        elif isinstance(table, MeanDifference):
            fields["means"] = table
        else:
            fields["paired"] = Paired(items=items, wins=table[0], losses=table[1])
        one = SuiteComparison(
            suite=name, candidate=evaluation(f"new {name}").digest,
            baseline=evaluation(f"old {name}").digest, **fields,
        )  # fmt: skip
        compared[comparison_key(name, one.baseline)] = one
    return replace(made, comparisons=compared)


def baseline(*suites: str) -> Registered:
    return version(1, **{name: evaluation(f"old {name}") for name in suites})


def means(difference: float, low: float, confidence: float = 0.95, seed: int = 0) -> MeanDifference:
    return MeanDifference(
        items=1319, difference=difference, low=low, high=difference + 1, confidence=confidence,
        seed=seed, resamples=10_000,
    )  # fmt: skip


def supporting(**fields: Any) -> dict[str, Any]:
    return {"importance": "supporting", **BETTER, **fields}


CRITICAL: list[tuple[dict[str, Any], Any, Verdict]] = [
    (BETTER, (80, 40), PASS),
    (BETTER, (40, 80), FAIL),
    (BETTER, (60, 45), FAIL),
    (BETTER, (62, 42), PASS),
    (BETTER, (5, 0), PASS),
    (BETTER, (4, 0), FAIL),
    (BETTER, (0, 0), FAIL),
    (BETTER, (50, 50), FAIL),
    ({**BETTER, "confidence": 0.9}, (60, 45), PASS),
    ({**BETTER, "confidence": 0.99}, (62, 42), FAIL),
    ({**BETTER, "confidence": 0.99}, (80, 40), PASS),
    ({**BETTER, "confidence": 0.9375}, (4, 0), PASS),
    (CLOSE, (10, 10), PASS),
    (CLOSE, (50, 50), FAIL),
    (CLOSE, (40, 45), FAIL),
    (CLOSE, (0, 0), PASS),
    (CLOSE, (10, 60), FAIL),
    ({**CLOSE, "margin": 0.02}, (50, 50), PASS),
    ({**CLOSE, "margin": 0.02}, (50, 60), FAIL),
    ({**CLOSE, "margin": 0.02, "confidence": 0.9}, (50, 60), PASS),
    ({**CLOSE, "margin": 0.05}, (40, 80), PASS),
    ({**CLOSE, "margin": 1.0}, (0, 1319), PASS),
    (BETTER, None, OPEN),
    (BETTER, {"unpaired": 1, "paired": Paired(items=1318, wins=80, losses=0)}, OPEN),
    (BETTER, {"problem": "an object is gone"}, OPEN),
    (BETTER, {}, OPEN),
    (BETTER, means(0.02, 0.001), PASS),
    (BETTER, means(0.02, 0.0), FAIL),
    (BETTER, means(0.02, -0.01), FAIL),
    (BETTER, means(0.02, 0.001, confidence=0.9), OPEN),
    (BETTER, means(0.02, 0.001, seed=1), OPEN),
    (CLOSE, means(-0.005, -0.009), PASS),
    (CLOSE, means(-0.005, -0.011), FAIL),
    (CLOSE, means(0.0, -0.01), PASS),
    ({**BETTER, "at_least": 0.6}, (80, 40), PASS),
    ({**BETTER, "at_least": 0.61}, (80, 40), FAIL),
    ({**BETTER, "at_least": 0.6}, (40, 80), FAIL),
    ({"at_least": 0.5}, None, PASS),
    ({"at_least": 0.7}, None, FAIL),
    ({**BETTER, "min_items": 1319}, (80, 40), PASS),
    ({**BETTER, "min_items": 1320}, (80, 40), OPEN),
    ({"at_least": 0.7, "min_items": 1320}, None, OPEN),
    ({**BETTER, "importance": "informational"}, (40, 80), PASS),
]


@pytest.mark.parametrize(("rule", "table", "verdict"), CRITICAL)
def test_a_suite(rule: dict[str, Any], table: Any, verdict: Verdict) -> None:
    suites = {"qa": rule, "other": {"at_least": 0.1}}
    made = candidate({"qa": table, "other": None})
    assert judge(gate(suites=suites), made, baseline("qa")).verdict is verdict


@pytest.mark.parametrize(("gain", "seed", "most"), [(0.0, 1, 0.05), (-0.01, 2, 0.005)])
def test_of_1_000_candidates_that_are_no_better_few_pass(
    gain: float, seed: int, most: float
) -> None:
    """They differ from the champion on a tenth of 1,319 items, and have `gain` more right."""
    shares = [(0.1 + gain) / 2, (0.1 - gain) / 2, 0.9]
    tables = np.random.default_rng(seed).multinomial(1319, shares, size=1000)
    champion, given = baseline("qa"), gate(suites={"qa": BETTER})
    verdicts = [
        judge(given, candidate({"qa": (int(wins), int(losses))}), champion).verdict
        for wins, losses, _ in tables
    ]
    assert verdicts.count(PASS) <= most * len(verdicts)
    assert verdicts.count(OPEN) == 0


SEVERAL: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], Verdict]] = [
    ({"a": BETTER, "b": CLOSE}, {"a": (80, 40), "b": (10, 10)}, {}, PASS),
    ({"a": BETTER, "b": CLOSE}, {"a": (80, 40), "b": (10, 60)}, {}, FAIL),
    ({"a": BETTER, "b": CLOSE}, {"a": (80, 40)}, {}, OPEN),
    ({"a": BETTER, "b": CLOSE}, {"a": (40, 80)}, {}, FAIL),
    ({"a": BETTER, "b": {**CLOSE, "required": False}}, {"a": (80, 40)}, {}, PASS),
    ({"a": BETTER, "b": supporting()}, {"a": (80, 40), "b": (40, 80)}, {}, PASS),
    ({"a": BETTER, "b": supporting()}, {"a": (80, 40), "b": (40, 80)}, {"supporting_failures": 0},
     FAIL),
    ({"a": BETTER, "b": supporting(), "c": supporting()},
     {"a": (80, 40), "b": (40, 80), "c": (40, 80)}, {}, FAIL),
    ({"a": BETTER, "b": supporting(), "c": supporting()},
     {"a": (80, 40), "b": (40, 80), "c": (40, 80)}, {"supporting_failures": 2}, PASS),
    ({"a": BETTER, "b": supporting()}, {"a": (80, 40)}, {}, PASS),
    ({"a": BETTER, "b": supporting(required=True)}, {"a": (80, 40)}, {}, OPEN),
    ({"a": BETTER, "b": {"importance": "informational"}}, {"a": (80, 40)}, {}, PASS),
    ({"a": BETTER, "b": {"importance": "informational", **BETTER}},
     {"a": (80, 40), "b": (40, 80)}, {}, PASS),
]  # fmt: skip


@pytest.mark.parametrize(("suites", "tables", "fields", "verdict"), SEVERAL)
def test_several_suites(
    suites: dict[str, Any], tables: dict[str, Any], fields: dict[str, Any], verdict: Verdict
) -> None:
    given = gate(suites=suites, **fields)
    assert judge(given, candidate(tables), baseline(*suites)).verdict is verdict


SERVING: list[tuple[dict[str, Any] | None, Verdict]] = [
    (GOOD, PASS),
    (None, OPEN),
    ({"format": "onnx"}, OPEN),
    ({**GOOD, "format": "torch"}, FAIL),
    ({**GOOD, "size_bytes": 101}, FAIL),
    ({**GOOD, "memory_bytes": 201}, FAIL),
    ({**GOOD, "load_s": 2.1}, FAIL),
    ({**GOOD, "difference": 0.011}, FAIL),
    ({**GOOD, "difference": None}, OPEN),
    ({**GOOD, "latencies": [{"batch": 1, "p50_ms": 10, "p99_ms": 51}]}, FAIL),
    ({**GOOD, "latencies": [{"batch": 8, "p50_ms": 10, "p99_ms": 50}]}, OPEN),
    ({**GOOD, "loads": False, "error": "no such operator"}, FAIL),
]


@pytest.mark.parametrize(("report", "verdict"), SERVING)
def test_serving_limits(report: dict[str, Any] | None, verdict: Verdict) -> None:
    made = candidate({"qa": (80, 40)})
    if report is not None:
        made = replace(made, serving=ServingReport.model_validate(report))
    assert judge(gate(serving=LIMITS), made, baseline("qa")).verdict is verdict


@pytest.mark.parametrize(
    ("users", "fields", "verdict"),
    [
        ((), {"approvals": 1}, OPEN),
        (("anna",), {"approvals": 1}, PASS),
        (("ben",), {"approvals": 1}, OPEN),  # he registered it
        (("anna", "ben"), {"approvals": 2}, OPEN),
        (("anna", "carl"), {"approvals": 2}, PASS),
        (("anna",), {"approvals": 1, "approvers": ["carl"]}, OPEN),
        (("carl",), {"approvals": 1, "approvers": ["carl"]}, PASS),
    ],
)
def test_approvals(users: tuple[str, ...], fields: dict[str, Any], verdict: Verdict) -> None:
    made = candidate({"qa": (80, 40)})
    made = replace(made, approvals=tuple(Approval(user, "", AT) for user in users))
    assert judge(gate(**fields), made, baseline("qa")).verdict is verdict


@pytest.mark.parametrize(
    ("first", "rule", "verdict"),
    [
        ("accept", BETTER, PASS),
        ("refuse", BETTER, OPEN),
        ("refuse", {"at_least": 0.5}, PASS),
        ("accept", {**BETTER, "at_least": 0.7}, FAIL),
    ],
)
def test_without_a_baseline(first: str, rule: dict[str, Any], verdict: Verdict) -> None:
    made = candidate({"qa": None})
    assert judge(gate(first=first, suites={"qa": rule}), made, None).verdict is verdict


def test_a_baseline_without_scores_is_inconclusive() -> None:
    assert judge(gate(), candidate({"qa": (80, 40)}), baseline()).verdict is OPEN


def test_a_comparison_of_other_scores_does_not_count() -> None:
    other = version(1, qa=evaluation("reported again"))
    assert judge(gate(), candidate({"qa": (80, 40)}), other).verdict is OPEN


def test_a_version_without_a_validated_checkpoint_fails_unless_the_gate_allows_it() -> None:
    made = replace(candidate({"qa": (80, 40)}), checkpoint=None)
    assert judge(gate(), made, baseline("qa")).verdict is FAIL
    assert judge(gate(checkpoint="any"), made, baseline("qa")).verdict is PASS
