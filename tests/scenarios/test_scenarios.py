"""Every scenario of the tables in this folder, one case each. grammar.py tells how to write one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from scenarios.grammar import Scenario, TableError, parse, read
from scenarios.play import play

TABLES = sorted(Path(__file__).parent.glob("*.yaml"))
SCENARIOS = [(path.stem, scenario) for path in TABLES for scenario in read(path)]


def case(theme: str, scenario: Scenario) -> str:
    return f"{theme}: {scenario.name}"


@pytest.mark.parametrize(
    "scenario", [pytest.param(found, id=case(theme, found)) for theme, found in SCENARIOS]
)
def test_scenario(scenario: Scenario) -> None:
    play(scenario)


def test_no_two_scenarios_have_one_name() -> None:
    count = Counter(case(theme, scenario) for theme, scenario in SCENARIOS)
    assert [name for name, times in count.items() if times > 1] == []


GIVEN = "given: {nodes: {n1: {gpus: 4}}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {name: s, when: [{tick: 1}]}", "t.yaml: s: when.0.tick: Extra inputs"),
        ("- {name: s, given: {nods: {}}, when: [{}]}", "t.yaml: s: given.nods: Extra inputs"),
        ("- {name: s, when: [{after: 3}]}", "s: when.0.after: .*'3' is no duration"),
        ("- {name: s, when: [{submit: {a: {}}, cancel: a}]}", "one action a step, not submit and"),
        ("- {name: s, when: []}", "s: when: List should have at least 1 item"),
        ("- {when: [{}], then: {}}", "number 1: name: Field required"),
        ("- {name: s, when: [{}], then: {free: {n1: 1, n1: 2}}}", "'n1' stands twice"),
    ],
)
def test_a_table_that_is_not_in_the_grammar_is_refused(text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        list(parse(text, "t.yaml"))


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("starts: []", r"starts: \['a'\], not \[\]"),
        ("starts: {a: {nodes: {n1: 3}}}", "a starts: nodes: {'n1': 2}, not {'n1': 3}"),
        ("stops: {a: preempted}", r"stops: \[\], not \['a'\]"),
        ("ends: {a: failed}", "ends: {}, not {'a': 'failed'}"),
        ("waits: {a: capacity}", "a does not wait"),
        ("runs: {a: 1}", "GPUs of a: 2, not 1"),
        ("free: {n1: 1}", "free on n1: 2, not 1"),
        ("reserved_gpus: {a: {n1: 1}}", "reserved_gpus: {}, not"),
        ("used: {nlp: 1}", "used by nlp: 2, not 1"),
        ("queue: [a]", r"queue: \[\], not \['a'\]"),
        ("value: {a: 1}", "value of a: 50.0, not 1.0"),
        ("due: {nlp: 1}", "nlp has of its due: 0.5, not 1"),
        ("reserved: {a: {start: 1 h}}", r"reserved for: \[\], not \['a'\]"),
    ],
)
def test_an_expectation_that_is_not_met_fails(then: str, message: str) -> None:
    text = f"- {{name: s, {GIVEN}, when: [{{submit: {{a: {{gpus: 2}}}}}}], then: {{{then}}}}}"
    (scenario,) = parse(text, "t.yaml")

    with pytest.raises(AssertionError, match=message):
        play(scenario)
