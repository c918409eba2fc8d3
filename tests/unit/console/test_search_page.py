"""Search as a page, and pages of the documentation with links that stay in the console."""

from __future__ import annotations

import re
from typing import Any

from gangline_console.pages.docs import rendered
from gangline_gateway.documentation import pages
from gangline_schemas.api.search import DocPage, Found, SearchResults
from support.builders.console import console


def found(kind: str, name: str, **changes: Any) -> Found:
    values: dict[str, Any] = {
        "kind": kind, "id": name, "title": name, "detail": "", "team": "", "exact": False
    }  # fmt: skip
    return Found.model_validate(values | changes)


def test_results_are_grouped_by_kind_with_the_address_of_each() -> None:
    results = SearchResults(
        found=[
            found("job", "llama-0a1b", title="<b>llama</b>", detail="running", team="research"),
            found("node", "node-1"),
            found("team", "llama-team"),
            found("doc", "guides/alerts.md#silences", title="Silences"),
        ],
        notes=["ended runs of the past: history does not answer"],
    )
    client, gateway = console({"GET /v1/search": results})
    text = client.get("/console/search?q=llama").text
    for place in (
        "/console/jobs/llama-0a1b", "/console/nodes/node-1",
        "/console/jobs?team=llama-team", "/console/docs/guides/alerts.md#silences",
    ):  # fmt: skip
        assert f'href="{place}"' in text, place
    assert "<b>llama" not in text
    assert "history does not answer" in text
    assert dict(gateway.asked[-1][1])["q"] == "llama"


def test_an_exact_id_leads_to_its_job() -> None:
    results = SearchResults(found=[found("run", "llama-0a1b", exact=True)], notes=[])
    client, _ = console({"GET /v1/search": results})
    answer = client.get("/console/search?q=LLAMA-0a1b")
    assert answer.headers["location"] == "/console/jobs/llama-0a1b"


def test_nothing_found_and_nothing_asked_say_so() -> None:
    client, gateway = console({"GET /v1/search": SearchResults(found=[], notes=[])})
    assert "Nothing found" in client.get("/console/search?q=zzz").text
    asked = len(gateway.asked)
    assert "Search everything" in client.get("/console/search").text
    assert len(gateway.asked) == asked


def test_documentation_has_anchors_and_links_that_stay_inside() -> None:
    markdown = (
        "# Alerts\n\n## The `file` of [alerts](x.md)\n\nSee [faults](../concepts/faults.md#a), "
        "[code](../../tests/x.py), [web](https://example.com), [here](#alerts).\n\n"
        "<script>alert(1)</script>\n\n| a | b |\n|:---|---:|\n| 1 | 2 |\n"
    )
    text = rendered(markdown, "guides/alerts.md")
    assert '<h2 id="the-file-of-alerts">' in text
    assert 'href="/console/docs/concepts/faults.md#a"' in text
    assert 'href="https://example.com"' in text
    assert 'href="#alerts"' in text
    assert "tests/x.py" not in text
    assert ", code, " in text, "a link that leads nowhere is its text"
    assert "<script>" not in text
    assert "style=" not in text
    assert "<td>2</td>" in text


def test_the_documentation_begins_with_all_pages_by_subject() -> None:
    client, _ = console({})
    answer = client.get("/console/docs")
    assert answer.headers["location"] == "/console/docs/README.md"
    page = answer.headers["location"].removeprefix("/console/docs/")
    text = rendered(pages()[page].markdown, page)
    linked = set(re.findall(r'href="/console/docs/([^"#]+)', text))
    assert linked <= pages().keys()
    known = {name for name in pages() if name.startswith("guides/")}
    assert known - linked == set()


def test_a_page_of_the_documentation_is_shown() -> None:
    page = DocPage(page="runbooks/hang.md", title="hang", markdown="# hang\n\nDo this.\n")
    client, _ = console({"GET /v1/docs/runbooks/hang.md": page})
    text = client.get("/console/docs/runbooks/hang.md").text
    assert '<h1 id="hang">hang</h1>' in text
    assert "docs/runbooks/hang.md" in text
