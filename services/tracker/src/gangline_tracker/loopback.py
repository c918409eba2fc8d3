"""The rule for requests to the tracker's HTTP servers on 127.0.0.1."""

from __future__ import annotations

import base64
import binascii

from starlette.requests import Request

from gangline_service.loopback import is_loopback


def is_local(request: Request) -> bool:
    """Whether the request names this machine and does not come from a browser.

    Browsers reach loopback by DNS rebinding, with the wrong Host, or from a page, with an Origin.
    """
    hosts = request.headers.getlist("host")
    name = hosts[0].partition(":")[0].lower() if len(hosts) == 1 else ""
    return is_loopback(name) and "origin" not in request.headers


def token_of(request: Request) -> str | None:
    """The token, from X-ClickHouse-Key, a bearer, or the password of HTTP basic."""
    key = request.headers.get("x-clickhouse-key")
    if key:
        return key
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return decoded.partition(":")[2]
