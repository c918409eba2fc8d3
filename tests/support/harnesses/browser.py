"""Headless Chromium, driven by its DevTools protocol; None where there is no Chromium."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from support.harnesses.tracker_process import wait_until

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Browser:
    """One page. Methods block; scripts run in the page."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse
    ) -> None:
        self._loop, self._socket = loop, socket
        self._last = 0
        self.errors: list[str] = []
        """Exceptions of the page's scripts, and answers of 400 and above."""

    def open(self, url: str) -> None:
        """Go to a page; it may still load afterwards."""
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        wait_until(
            f"{text!r} in the page", lambda: text in (self.run("document.body?.innerText") or "")
        )

    def waits(self, script: str) -> Any:
        """The first true value of an expression."""
        return wait_until(script, lambda: self.run(script))

    def click(self, text: str) -> None:
        """Click on the first element that shows just this text."""
        quoted = json.dumps(text)
        self.waits(
            "(() => { const found = [...document.querySelectorAll('a,button,span,div')]"
            f".filter(e => e.innerText?.trim() === {quoted} && e.getClientRects().length).pop();"
            " found?.click(); return !!found })()"
        )

    def screenshot(self, path: Path) -> None:
        """Save what it shows as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(self._ask(method, parameters), self._loop).result(
            120
        )

    async def _ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._last:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        elif message.get("method") == "Network.responseReceived":
            response = message["params"]["response"]
            if response["status"] >= 400:
                self.errors.append(f"{response['status']} {response['url']}")


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in the folder; it ends with the block."""
    assert CHROMIUM is not None
    folder.mkdir(parents=True, exist_ok=True)
    argv = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--no-first-run", "--disable-background-networking", "--remote-debugging-port=0",
        f"--user-data-dir={folder}", "--window-size=1400,900", "about:blank",
    ]  # fmt: skip
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        port_file = folder / "DevToolsActivePort"
        wait_until("the browser", lambda: port_file.exists() and port_file.read_text().count("\n"))
        port = int(port_file.read_text().splitlines()[0])
        session, page = asyncio.run_coroutine_threadsafe(_page(port), loop).result(60)
        found = Browser(loop, page)
        for domain in ("Page", "Runtime", "Network"):
            found._call(f"{domain}.enable")
        yield found
        asyncio.run_coroutine_threadsafe(session.close(), loop).result(60)
    finally:
        process.kill()
        process.wait(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _page(port: int) -> tuple[aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]:
    session = aiohttp.ClientSession()
    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
        pages = [item for item in await answer.json() if item["type"] == "page"]
    return session, await session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
