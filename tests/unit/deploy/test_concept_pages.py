"""Each page of docs/concepts has a picture, and a section that says how to change the part."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[3] / "docs" / "concepts").glob("*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINES = re.compile(r"[─│┌└►▼]|--->|<---|\+--")


def has_picture(text: str) -> bool:
    return any(
        language == "mermaid" or (not language and _LINES.search(block) is not None)
        for language, block in _BLOCK.findall(text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_picture_and_says_how_to_change_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert has_picture(text)
    assert re.search(r"^## To change it\b", text, re.MULTILINE)


def test_a_page_without_a_picture_is_found() -> None:
    assert PAGES
    assert not has_picture("a ──► b\n\n```sh\ngangline list ──►\n```\n\n```\nno lines\n```\n")
