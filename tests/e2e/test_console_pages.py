"""What holds of every page of the console: accessible in both themes, narrow, without errors."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from gangline.local.artifacts import Artifact, default_cache, fetch_all
from gangline.sdk import connect
from support.fixtures.platform import RunningPlatform
from support.harnesses.console_page import ConsolePage
from support.harnesses.console_tour import Seeded, routes, seed, stops

AXE = Artifact(
    "org.webjars.npm:axe-core:4.6.3",
    "c339ddad238886211644ff2b58f8c395bf42de4a1d7742c98af7aa01a9675ac3",
    437_569,
)
MEMBER = "META-INF/resources/webjars/axe-core/4.6.3/axe.min.js"
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],  # to list all that passes takes two thirds of its time
}
LOOKS: tuple[tuple[Literal["light", "dark"], tuple[int, int]], ...] = (
    ("light", (1400, 900)), ("light", (390, 844)), ("dark", (390, 844)), ("dark", (2560, 1440)),
)  # fmt: skip
ALL_LOOKS = "GANGLINE_ALL_LOOKS" in os.environ
"""Each page in all looks; else in one of them, in turn, and each third one is read by axe-core."""
TODAY = datetime.now(UTC).toordinal()


@pytest.fixture(scope="module")
def axe() -> str:
    with zipfile.ZipFile(fetch_all([AXE], default_cache())[0]) as jar:
        return jar.read(MEMBER).decode()


@pytest.fixture
def seeded(platform: RunningPlatform) -> Iterator[Seeded]:
    with connect(platform.client.url, platform.client.token) as gateway:
        yield seed(gateway)


def violations(page: Page) -> list[str]:
    """What axe-core finds: rule, and the first element."""
    found: list[dict[str, Any]] = page.evaluate(
        "(options) => axe.run(document, options).then((found) => found.violations)", RULES
    )
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]


def overflows(page: Page) -> str:
    """The first element beyond the right edge of a page that can be scrolled there."""
    return str(page.evaluate(
        "() => { const root = document.scrollingElement;"
        " if (root.scrollWidth <= innerWidth + 1) return '';"
        " const wide = [...document.querySelectorAll('main *')]"
        ".find((e) => e.getBoundingClientRect().right > innerWidth + 1);"
        " return wide?.outerHTML.slice(0, 200) ?? 'the page' }"
    ))  # fmt: skip


@pytest.mark.timeout(3600 if ALL_LOOKS else 900)
def test_every_page(
    platform: RunningPlatform, console: ConsolePage, seeded: Seeded, axe: str
) -> None:
    page = console.page
    wrong: list[str] = []
    for number, (name, path) in enumerate(stops(seeded).items()):
        loaded, read = "", False
        for theme, (width, height) in LOOKS if ALL_LOOKS else [LOOKS[number % len(LOOKS)]]:
            page.set_viewport_size({"width": width, "height": height})
            if theme != loaded:  # a page in sight follows its width
                page.emulate_media(color_scheme=theme)
                answer = page.goto(f"{console.url}/console{path}")
                assert answer is not None
                if answer.status != 200:
                    wrong.append(f"{name}: {answer.status}")
                    break
                expect(page.get_by_role("heading", level=1).first).to_be_visible()
                page.wait_for_load_state("load")
                loaded = theme
                if read := ALL_LOOKS or (number + TODAY) % 3 == 0:
                    page.evaluate(axe)  # as a debugger, which the security policy does not stop
            if read:
                wrong += [f"{name}, {theme}, {width} px: {one}" for one in violations(page)]
            if beyond := overflows(page):
                wrong.append(f"{name}, {theme}, {width} px: {beyond}")
    assert wrong == []


def test_the_tour_has_every_route() -> None:
    shown = [path.partition("?")[0] for path in stops(Seeded("r", "w", "f", "e", "n")).values()]
    missing = [
        route
        for route in routes()
        if not any(re.fullmatch(re.sub(r"\{\w+(:path)?\}", ".+", route), path) for path in shown)
    ]
    assert missing == []
