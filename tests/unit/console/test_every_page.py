"""What holds of every page, also of the next one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.routing import compile_path

from gangline_console.assets import PACKAGE
from gangline_console.pages import PAGES
from support.builders.console import console

ROOT = Path(__file__).parents[3]
POSTS = sorted({path for page in PAGES for path in page.post})
TEMPLATES = sorted([*PACKAGE.glob("templates/**/*.html"), *PACKAGE.glob("pages/**/*.html")])
SCRIPTS = sorted(
    path
    for path in [*PACKAGE.glob("static/*.js"), *PACKAGE.glob("pages/**/*.js")]
    if "vendor" not in path.parts
)
FORBIDDEN_IN_HTML = {
    "markup that is not escaped": r"\|\s*safe\b|autoescape",
    "a script in the page": r"<script(?![^>]*\bsrc=)(?![^>]*type=\"application/json\")",
    "a style in the page": r"<style|\sstyle=",
    "a handler in an attribute": r"\son[a-z]+=",
    "another host": r"""(?:src|href|action)=["']https?:""",
}
FORBIDDEN_IN_SCRIPTS = {
    "texts as markup": r"\b(?:innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write)\b",
    "code from texts": r"\beval\(|new Function\(",
    "another host": r"""["'`]https?://(?!www\.w3\.org/)""",
}


def named(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("token", ["", "0" * 64])
def test_a_form_without_its_token_asks_nothing_of_rest(path: str, token: str) -> None:
    client, gateway = console()

    answer = client.post(f"/console{re.sub(r'{[^}]+}', 'a', path)}", data={"csrf": token})

    assert answer.status_code == 403
    assert {asked[0] for asked in gateway.asked} <= {"GET /v1/whoami"}


@pytest.mark.parametrize("path", TEMPLATES, ids=named)
def test_a_template_has_nothing_that_the_policy_forbids(path: Path) -> None:
    text = path.read_text("utf-8")

    assert [what for what, found in FORBIDDEN_IN_HTML.items() if re.search(found, text)] == []
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", text, re.DOTALL):
        assert "csrf_field()" in form or 'action="/session/end"' in form, form[:200]


@pytest.mark.parametrize("path", SCRIPTS, ids=named)
def test_a_script_makes_no_markup_of_texts(path: Path) -> None:
    text = path.read_text("utf-8")

    assert [what for what, found in FORBIDDEN_IN_SCRIPTS.items() if re.search(found, text)] == []


def test_each_page_is_in_the_navigation_or_below_one_that_is() -> None:
    tops = {page.nav for page in PAGES if page.nav}
    apart = {"components", "compare", "docs", "search"}  # reached from runs, the frame, or by hand
    for page in PAGES:
        if page.name not in apart:
            assert all(any(path.startswith(top) for top in tops) for path in page.get), page.name


def test_each_page_of_the_navigation_has_its_own_key() -> None:
    letters = [page.letter for page in PAGES if page.nav]

    assert sorted(letters) == sorted(set(letters))


@pytest.mark.parametrize("path", TEMPLATES, ids=named)
def test_links_of_a_template_lead_to_pages_that_are_there(path: Path) -> None:
    routes = [compile_path(route)[0] for page in PAGES for route in ("/", *page.get, *page.post)]
    for link in re.findall(r'(?:href|action)="\{\{ prefix \}\}(/[^"]*)"', path.read_text("utf-8")):
        parts = re.sub(r"/\{\{.*?\}\}", "/x", link)  # other values are the query
        at = re.split(r"[?#]|\{[{%]", parts)[0]
        assert any(route.match(at) for route in routes), link
        if at.startswith("/docs/") and "{" not in link:
            assert (ROOT / at.removeprefix("/")).is_file(), link
