"""The documentation of this release, such as the runbooks that incidents link to."""

from __future__ import annotations

import posixpath
import re
from urllib.parse import quote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup
from starlette.responses import Response

from gangline_console.page import PREFIX, Page, View
from gangline_schemas.api.search import DocPage

HOME = "README.md"
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


async def _doc(view: View) -> Response:
    page = view.path("page")
    found = await view.api.get(f"/v1/docs/{quote(page, safe='/')}", DocPage)
    return view.render(
        "docs/page.html",
        found=found,
        text=Markup(rendered(found.markdown, page)),  # noqa: S704 - raw HTML is off
    )


async def _home(view: View) -> Response:
    return view.go(f"/docs/{HOME}")


def rendered(markdown: str, page: str) -> str:
    """Markdown as HTML: headings have anchors, and links between pages stay in the console."""
    tokens = _MARKDOWN.parse(markdown)
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(tokens[at + 1].content))
        _keep_inside(token.children or [], page)
        # Alignment of cells is an inline style, which the security policy forbids.
        if "style" in token.attrs:
            del token.attrs["style"]
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def anchor(heading: str) -> str:
    """The anchor of a heading, as REST names it in searches."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def _keep_inside(tokens: list[Token], page: str) -> None:
    """Links lead to pages of the console; those to other files become their text."""
    outside = False
    for token in tokens:
        if token.type == "link_open":
            target, _, place = str(token.attrGet("href") or "").partition("#")
            outside = False
            if target and "://" not in target and not target.startswith(("/", "mailto:")):
                inside = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
                outside = inside.startswith("..") or not inside.endswith(".md")
                token.attrSet("href", f"{PREFIX}/docs/{inside}{'#' if place else ''}{place}")
        if outside and token.type in {"link_open", "link_close"}:
            token.type = "text"
        if token.type == "image":  # pictures are not part of a release
            token.type, token.content, token.children = "text", "", []


PAGE = Page("docs", "Documentation", get={"/docs": _home, "/docs/{page:path}": _doc}, timeless=True)
