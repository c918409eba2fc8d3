"""Search: jobs, runs, nodes, teams and documentation; works without scripts."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, urlencode

from starlette.responses import Response

from gangline_console.page import PREFIX, Page, View
from gangline_schemas.api.search import Found, SearchResults

KINDS = {"job": "Jobs", "run": "Runs", "node": "Nodes", "team": "Teams", "doc": "Documentation"}


async def _search(view: View) -> Response:
    text = view.query("q")[:100]
    if not text:
        return view.render("search/page.html", text="", groups=[], notes=[], href=href)
    results = await view.api.get("/v1/search", SearchResults, {"q": text, "limit": 20})
    jobs = [one for one in results.found if one.kind in {"job", "run"} and one.exact]
    if jobs and jobs[0].id.lower() == text.lower():
        return view.go(f"/jobs/{quote(jobs[0].id, safe='')}")
    return view.render(
        "search/page.html", text=text, groups=by_kind(results.found), notes=results.notes, href=href
    )


def by_kind(found: Iterable[Found]) -> list[tuple[str, list[Found]]]:
    """The results under the titles of their kinds; kinds with an exact result first."""
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(one.kind, []).append(one)
    return [(KINDS.get(kind, kind), of) for kind, of in groups.items()]


def href(one: Found) -> str:
    """The page of a result. `static/search.js` makes the same addresses."""
    name = quote(one.id, safe="")
    if one.kind in {"job", "run"}:
        return f"{PREFIX}/jobs/{name}"
    if one.kind == "doc":
        return f"{PREFIX}/docs/{quote(one.id, safe='/#')}"
    if one.kind == "team":
        return f"{PREFIX}/jobs?{urlencode({'team': one.id})}"
    return f"{PREFIX}/nodes/{name}"


PAGE = Page("search", "Search", get={"/search": _search})
