"""The documentation of this release: its pages, and their headings for searches.

A wheel has the pages in the folder `docs` of this package; a checkout has them at its root.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

_PACKAGE = Path(__file__).parent
_FOLDERS = (_PACKAGE / "docs", _PACKAGE.parents[3] / "docs")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,4} +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class Heading(NamedTuple):
    """`place` is the page, with the heading's anchor unless it is the page's title."""

    place: str
    heading: str
    page: str


@dataclass(frozen=True, slots=True)
class Doc:
    """A page of the documentation."""

    title: str
    markdown: str


@cache
def pages() -> Mapping[str, Doc]:
    """Pages by path, like `guides/alerts.md`; none if this installation has no documentation."""
    folder = next((path for path in _FOLDERS if (path / "guides").is_dir()), None)
    if folder is None:
        return {}
    found = {}
    for path in sorted(folder.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        titles = _headings(text)
        name = path.relative_to(folder).as_posix()
        found[name] = Doc(titles[0] if titles else name, text)
    return found


@cache
def headings() -> tuple[Heading, ...]:
    """All headings, page by page, in order."""
    return tuple(
        Heading(f"{page}#{anchor(heading)}" if index else page, heading, doc.title)
        for page, doc in pages().items()
        for index, heading in enumerate(_headings(doc.markdown))
    )


def anchor(heading: str) -> str:
    """The anchor that renderers of Markdown give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _headings(text: str) -> list[str]:
    found = [matched[1] for matched in _HEADING.finditer(_FENCE.sub("", text))]
    return [_LINK.sub(r"\1", heading).replace("`", "") for heading in found]
