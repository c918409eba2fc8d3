"""Every link of a page to a file of the project, and to a heading, leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import prose

_CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_TEST = re.compile(r"test_\w+")


def broken(page: Path) -> list[str]:
    found = []
    for target in _LINK.findall(_CODE_BLOCK.sub("", page.read_text(encoding="utf-8"))):
        name, _, place = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if "://" not in target and not (path.exists() and (not place or leads(path, place))):
            found.append(target)
    return found


def leads(path: Path, place: str) -> bool:
    """Whether a page has that heading, or a file of tests that test."""
    text = path.read_text(encoding="utf-8")
    if _TEST.fullmatch(place):
        return f"def {place}(" in text
    return place in {anchor(heading) for heading in _HEADING.findall(_CODE_BLOCK.sub("", text))}


def anchor(heading: str) -> str:
    """The name that GitHub and MkDocs give to a heading."""
    shown = _LINK.sub(lambda link: link[0].partition("]")[0], heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", prose.pages(), ids=lambda page: str(page.relative_to(prose.ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `code` [word](x.md), two\n\n```\n# No heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#a-code-word-two) [c](#none) [d](gone.md)\n"
        "[e](other.md#no-heading) [f](https://example.org/#x)\n```\n[g](gone.md)\n```\n"
    )
    assert broken(page) == ["#none", "gone.md", "other.md#no-heading"]
