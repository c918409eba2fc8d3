"""Gate files: errors name the file, the line and the field."""

from __future__ import annotations

import pytest

from gangline_schemas.gate_file import GateFileError, read_gate

GATE = """\
team: nlp
model: summarizer
aliases: [champion]
baseline: current
suites:
  qa: {rule: better}
  safety:
    rule: not_worse
    margin: 0.005
serving:
  p99_ms: 80
"""


def test_a_gate_file_is_a_gate() -> None:
    found = read_gate(GATE)
    assert (found.model, found.baseline, [*found.suites]) == (
        "summarizer", "current", ["qa", "safety"],
    )  # fmt: skip


def test_a_baseline_may_be_a_version() -> None:
    assert read_gate(GATE.replace("current", "3")).baseline == 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("baseline: current\n", "", "my.yaml:1: baseline: is missing"),
        ("baseline: current", "baseline: best", "my.yaml:4: baseline: must be current, or the"),
        ("baseline: current", "baseline: 0", "my.yaml:4: baseline: must be current, or the"),
        ("[champion]", "[latest]", "my.yaml:3: aliases.0: "),
        ("    margin: 0.005\n", "", "my.yaml:7: suites.safety: "),
        ("margin: 0.005", "margin: -1", "my.yaml:9: suites.safety.margin: "),
        ("{rule: better}", "{rule: nicer}", "my.yaml:6: suites.qa.rule: "),
        ("p99_ms: 80", "p99: 80", "my.yaml:11: serving.p99: "),
        ("summarizer", "$(rm -rf /)", "my.yaml:2: model: "),
        ("safety:", "__proto__:", "my.yaml:5: suites: __proto__"),
        ("aliases: [champion]", "aliases: [champion", "my.yaml:"),
    ],
)
def test_an_error_names_file_line_and_field(old: str, new: str, expected: str) -> None:
    assert old in GATE
    with pytest.raises(GateFileError) as caught:
        read_gate(GATE.replace(old, new), "my.yaml")
    assert str(caught.value).startswith(expected), str(caught.value)
