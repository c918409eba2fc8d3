"""The console in a real headless Chromium: one signed-in page, and all that went wrong on it."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Browser, Page, Request, Response, expect, sync_playwright

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("GANGLINE_CHROMIUM") or next(
    filter(None, map(shutil.which, _NAMES)), None
)
"""The first without a desktop's windows: a page costs it half the CPU."""
NO_CHROMIUM = (
    "no Chromium: install Debian's `chromium-headless-shell` or `chromium`, or name one in"
    " GANGLINE_CHROMIUM"
)
WAIT_MS = 180_000
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


@dataclass
class ConsolePage:
    """One page of a browser without state of others; `page` is Playwright's own."""

    url: str
    page: Page
    problems: list[str] = field(default_factory=list)
    """Script errors, reports of the security policy, answers of 500 and above, other hosts."""

    def __post_init__(self) -> None:
        self.page.set_default_timeout(WAIT_MS)
        self.page.on("console", lambda line: self._note(line.type == "error", line.text))
        self.page.on("pageerror", lambda error: self._note(True, str(error)))
        self.page.on("request", self._check_host)
        self.page.on("response", self._check_status)

    def go(self, path: str) -> None:
        """Open a page of the console: `go("/jobs")`."""
        self.page.goto(f"{self.url}/console{path}")

    def sign_in(self, token: str) -> None:
        """As `gangline open` does: by a code that is used once."""
        self.page.goto(f"{self.url}/session?next=/console/jobs#{one_time_code(self.url, token)}")
        self.page.wait_for_url("**/console/**")

    def _note(self, wrong: bool, text: str) -> None:
        if wrong:
            self.problems.append(text[:500])

    def _check_host(self, request: Request) -> None:
        ours = request.url.startswith((f"{self.url}/", "data:", "blob:"))
        self._note(not ours, f"asked another host: {request.url[:200]}")

    def _check_status(self, response: Response) -> None:
        self._note(response.status >= 500, f"{response.status} {response.url}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that ends with the block. Meanwhile its thread can run no other event loop."""
    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def console_page(browser: Browser, url: str, token: str) -> Iterator[ConsolePage]:
    """A signed-in page that has no problems when the block ends."""
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        found = ConsolePage(url, context.new_page())
        found.sign_in(token)
        yield found
        assert found.problems == []


def one_time_code(url: str, token: str) -> str:
    """A code that begins one session of the token."""
    request = urllib.request.Request(
        f"{url}/session/codes", method="POST", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["code"])
