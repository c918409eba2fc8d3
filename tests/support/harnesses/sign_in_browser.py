"""A browser that signs in at a provider: it follows redirects and fills in forms."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from typing import Any

import httpx
import pytest

from gangline.commands import login

STEPS = 15


def browser() -> httpx.Client:
    """As browsers do, it keeps cookies by host, sends secure ones here, asks for pages."""
    client = httpx.Client(timeout=60, headers={"Accept": "text/html"}, trust_env=False)

    def keep(_: httpx.Response) -> None:
        for cookie in client.cookies.jar:
            cookie.secure = False

    client.event_hooks = {"response": [keep]}
    return client


def walk(web: httpx.Client, page: httpx.Response, user: str, stop: str) -> httpx.Response:
    """The first answer at an address that begins with `stop`, or where there is no more form."""
    known = {"sub": user, "login": user, "password": "any", "username": user}
    for _ in range(STEPS):
        if page.is_redirect:
            page = web.get(page.url.join(page.headers["location"]))
            continue
        if str(page.url).startswith(stop) or page.is_error:
            return page
        form = re.search(r"<form([^>]*)>(.*?)</form>", page.text, re.DOTALL)
        if form is None:
            return page
        named = re.search(r'action="([^"]*)"', form[1])
        action = unescape(named[1]) if named else str(page.url)
        page = web.post(page.url.join(action), data=_filled(form[2], known))
    raise AssertionError("no end of forms")


@contextmanager
def confirm_logins(monkeypatch: pytest.MonkeyPatch, user: str) -> Iterator[None]:
    """Inside, `user` confirms each `gangline login`, as in a browser at the address it shows."""
    confirming: list[threading.Thread] = []
    begin = login.Gangline.begin_login

    def begin_login(client: Any) -> Any:
        begun = begin(client)

        def confirm() -> None:
            with browser() as web:
                walk(web, web.get(begun.verification_uri_complete), user, "nowhere")

        confirming.append(threading.Thread(target=confirm))
        confirming[-1].start()
        return begun

    with monkeypatch.context() as patched:
        patched.setattr(login.Gangline, "begin_login", begin_login)
        yield
    for each in confirming:
        each.join()


def _filled(form: str, known: dict[str, str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for tag in re.findall(r"<(?:input|button)[^>]*>", form):
        name = re.search(r'name="([^"]*)"', tag)
        if name is None or name[1] in {"action", "cancel", "abort"}:
            continue
        value = re.search(r'value="([^"]*)"', tag)
        fields[name[1]] = known.get(name[1], unescape(value[1]) if value else "")
    return fields
