"""Every `gangline ...` that the documentation tells people to type can be typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gangline.main import commands

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_TYPED = re.compile(r"`gangline ([^`]+)`|^\$? ?gangline (.+)$", re.MULTILINE)
_OPTION = re.compile(r"(?<![\w-])(--?[a-z][a-z0-9-]*)")


def wrong(typed: str) -> str | None:
    """What of a command line there is not."""
    typed = typed.split("#", maxsplit=1)[0]
    command: Any = commands()
    known = options_of(command)
    for word in typed.split():
        below = getattr(command, "commands", None)
        if not below or word.startswith("-"):
            break
        if word == "COMMAND":
            return None
        if word not in below:
            return f"no command {word}"
        command = below[word]
        known |= options_of(command)
    unknown = [option for option in _OPTION.findall(typed) if option not in known]
    return f"no option {unknown[0]}" if unknown else None


def options_of(command: Any) -> set[str]:
    return {name for item in command.params for name in (*item.opts, *item.secondary_opts)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_to_type_exists(page: Path) -> None:
    found = ["".join(match) for match in _TYPED.findall(page.read_text(encoding="utf-8"))]
    assert {typed: why for typed in found if (why := wrong(typed))} == {}


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("events -t faults", "no option -t"),
        ("data prepair a --out b", "no command prepair"),
        ("shown JOB", "no command shown"),
        ("logs JOB --rank 1 --json", None),
        ("teams set nlp --limit 3", None),
    ],
)
def test_the_reader_of_commands_sees_what_is_wrong(typed: str, why: str | None) -> None:
    assert wrong(typed) == why
