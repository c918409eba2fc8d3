"""Scripts that show how to save call `prepare` first: it says at once what `save` cannot take."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "bring-your-own-script.md"
ONLY_AT_A_SAVE = {"hf-trainer-script"}
"""Their state is what the Trainer has just written."""
SCRIPTS = sorted((ROOT / "examples").glob("*/*.py"))


def calls(text: str) -> dict[str, int]:
    """The first line of a call of each of the public functions."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found[node.func.id] = min(node.lineno, found.get(node.func.id, node.lineno))
    return found


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_an_example_that_saves_prepares_before_it_trains(script: Path) -> None:
    found = calls(script.read_text(encoding="utf-8"))
    if "save" in found and script.parent.name not in ONLY_AT_A_SAVE:
        assert found["prepare"] < found["doing"] < found["save"]


def test_some_examples_save() -> None:
    assert sum("save" in calls(script.read_text(encoding="utf-8")) for script in SCRIPTS) >= 3


def test_the_guide_prepares_where_it_saves_first() -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    first = next(block for block in blocks if " save(" in block)
    found = calls(first)
    assert found["prepare"] < found["save"]
