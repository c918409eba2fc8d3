"""Each target of the Makefile has one rule, and `make help` describes it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
WITHOUT_HELP = {"lint-log", "all-tests"}
"""They are parts of others."""


def test_each_target_has_one_rule_and_a_description() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    rules = re.findall(r"^([a-z-]+):(.*)$", MAKEFILE, re.MULTILINE)
    assert Counter(name for name, _ in rules) == Counter(phony[1].split())
    assert {name for name, rest in rules if "## " not in rest} == WITHOUT_HELP
