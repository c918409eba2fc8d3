"""Every page on a platform on which nothing has run: it says what would be there, and how."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from gangline.local.client import Client
from support.fixtures.platform import start_platform
from support.harnesses.console_page import console_page
from support.harnesses.console_tour import routes

pytestmark = pytest.mark.nightly
LISTS = {"/jobs", "/runs", "/compare", "/studies", "/pipelines", "/models", "/queue"}
"""Lists without a row; the others have nodes, decisions, teams, rules, fields or text."""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("empty")
    with start_platform(folder)[0] as platform:
        yield platform.start()


def test_every_page_of_an_empty_platform(empty: Client, chromium: Browser) -> None:
    with console_page(chromium, empty.url, empty.token) as console:
        page = console.page
        for path in sorted(one for one in routes() if "{" not in one):
            answer = page.goto(f"{console.url}/console{path}")
            assert answer is not None
            assert answer.status == 200, path
            expect(page.get_by_role("heading", level=1).first).to_be_visible()
            page.wait_for_load_state("load")
            if path in LISTS:
                expect(page.locator(".empty code, .empty a.button").first).to_be_visible()
