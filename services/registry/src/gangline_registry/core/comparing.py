"""Which comparisons of scores are wanted: those of newer versions with the present baselines."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from gangline_registry.core.model import (
    Compare,
    Pointer,
    Registered,
    alias_key,
    comparison_key,
    model_key,
    version_key,
)
from gangline_registry.core.policy.judge import fits
from gangline_registry.core.state import RegistryState
from gangline_schemas.gate_file import Gate

CANDIDATES = 20
"""So many of a model's newest versions are compared without being asked for."""


def baseline_of(gate: Gate, pointer: Pointer) -> int:
    """The version that candidates for this alias are compared with; 0: none."""
    return pointer.version if gate.baseline == "current" else gate.baseline


def missing(gate: Gate, candidate: Registered, baseline: Registered | None) -> list[Compare]:
    """The comparisons that the gate needs and that are not there, while both have evaluations."""
    if baseline is None or baseline.version == candidate.version:
        return []
    found = []
    for suite, rule in gate.suites.items():
        own, other = candidate.evaluations.get(suite), baseline.evaluations.get(suite)
        if rule.rule is None or own is None or other is None:
            continue
        known = candidate.comparisons.get(comparison_key(suite, other.digest))
        if known is not None and fits(gate, rule, known, own.digest, other.digest):
            continue
        found.append(
            Compare(
                candidate.team, candidate.model, candidate.version, baseline.version, suite,
                own, other, gate.confidence_of(rule), gate.seed, gate.resamples,
            )
        )  # fmt: skip
    return found


def effect_key(one: Compare) -> str:
    """The key of a comparison; each try adds its number."""
    key = version_key(one.team, one.model, one.version)
    rest = (one.candidate.digest[:16], one.baseline.digest[:16], one.confidence, one.seed,
            one.resamples)  # fmt: skip
    return f"compare:{key}:{one.suite}:{':'.join(map(str, rest))}"


def of_model(state: RegistryState, team: str, model: str) -> Iterator[Compare]:
    """The comparisons that a model's state asks for."""
    name = model_key(team, model)
    gated = state.models.get(name)
    if gated is None:
        return
    newest = nlargest(CANDIDATES, state.numbered.get(name, ()))
    asked = [
        one.version for one in state.promotions.values() if (one.team, one.model) == (team, model)
    ]
    pointers = (state.aliases[alias_key(team, model, alias)] for alias in gated.gate.aliases)
    for number in dict.fromkeys(baseline_of(gated.gate, pointer) for pointer in pointers):
        baseline = state.versions.get(version_key(team, model, number))
        if baseline is None:
            continue
        for wanted in dict.fromkeys([*(one for one in newest if one > number), *asked]):
            candidate = state.versions.get(version_key(team, model, wanted))
            if candidate is not None:
                yield from missing(gated.gate, candidate, baseline)
