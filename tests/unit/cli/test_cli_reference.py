"""docs/reference/cli.md and sdk.md name every command and method, and examples fit 80 columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gangline.main import commands
from gangline.sdk import Gangline

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_every_command_has_a_section_with_an_example() -> None:
    text = (REFERENCE / "cli.md").read_text()
    sections = dict(
        re.findall(r"^### gangline (\S+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    )
    assert set(sections) == set(commands().commands)
    for name, section in sections.items():
        assert f"$ gangline {name}" in section, name


def test_every_option_is_in_the_docs() -> None:
    pages = "\n".join(page.read_text() for page in REFERENCE.parent.rglob("*.md"))
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", pages))
    left: list[tuple[str, Any]] = [*commands().commands.items()]
    untold = []
    while left:
        name, command = left.pop()
        left += [(f"{name} {inner}", found) for inner, found in _below(command).items()]
        untold += [
            f"{name} {option.opts[0]}"
            for option in command.params
            if option.param_type_name == "option" and not known & {*option.opts}
        ]
    assert untold == []


def _below(command: Any) -> dict[str, Any]:
    return getattr(command, "commands", {})


def test_examples_fit() -> None:
    blocks = re.findall(
        r"^```\n(.*?)^```", (REFERENCE / "cli.md").read_text(), re.MULTILINE | re.DOTALL
    )
    lines = [line for block in blocks for line in block.splitlines()]
    assert [line for line in lines if len(line) > 80] == []


def test_every_method_is_listed() -> None:
    listed = set(re.findall(r"(?m)^\| `(\w+)\(", (REFERENCE / "sdk.md").read_text()))
    methods = {name for name in dir(Gangline) if callable(getattr(Gangline, name))}
    assert listed == {name for name in methods if not name.startswith("_")}
