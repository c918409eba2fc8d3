"""The two ways to sign in at the provider: the code flow of pages, the device flow of terminals.

- `GET /session/provider?next=`: to the provider, with PKCE, a state and a nonce.
- `GET /session/callback`: the provider sends the browser here; a session begins.
- `POST /session/device`: the code that a person types at the provider, and a handle.
- `POST /session/device/token`: once the person did so, the token of the sign-in.

The state is bound to a cookie of the browser that began, so no page can sign a person in as another
one. Sign-ins that are not finished are in memory alone, bounded, for ten minutes.
"""

from __future__ import annotations

import html
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from gangline_gateway.oidc.logins import Logins, NoRightsError
from gangline_gateway.oidc.provider import (
    Granted,
    ProviderAwayError,
    ProviderRefusedError,
    TokenRefusedError,
)
from gangline_gateway.plain_page import plain_page
from gangline_gateway.problems import ProblemError, unavailable
from gangline_gateway.recent import Recent
from gangline_gateway.user_limits import RequestLimits, RequestRates
from gangline_service.tokens import Principal

START, CALLBACK = "/session/provider", "/session/callback"
DEVICE, DEVICE_TOKEN = "/session/device", "/session/device/token"
WAIT_S = 600.0
MOST = 1000
_LIMITS = RequestLimits(per_s=20, burst=100)
_GO = "location.replace(document.getElementById('go').href);"
_REFUSED = (ProviderRefusedError, TokenRefusedError, NoRightsError)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A browser is at the provider."""

    until_s: float
    cookie: str
    verifier: str
    nonce: str
    redirect_uri: str
    next: str


@dataclass(slots=True)
class _Device:
    """A person types a code at the provider."""

    until_s: float
    device_code: str
    verifier: str
    interval_s: float
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The end of a sign-in: the token, the rights, and the page that was wanted."""

    token: str
    principal: Principal
    next: str


class Flows:
    """Belongs to one event loop."""

    def __init__(
        self, logins: Logins, scheme: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.logins = logins
        self._scheme, self._clock = scheme, clock
        self._browsers: Recent[str, _Begun] = Recent(MOST)
        self._devices: Recent[str, _Device] = Recent(MOST)
        self._rates = RequestRates(_LIMITS)

    @property
    def cookie_name(self) -> str:
        """Of the browser's cookie while it is at the provider."""
        return "__Host-gangline-in" if self._scheme == "https" else "gangline-in"

    async def start(self, request: Request, wanted: str) -> Response:
        """To the provider."""
        self._counted()
        state, cookie, verifier, nonce = (secrets.token_urlsafe(32) for _ in range(4))
        redirect_uri = f"{self._scheme}://{request.headers['host']}{CALLBACK}"
        try:
            place = await self.logins.provider.authorization_url(
                verifier, state=state, nonce=nonce, redirect_uri=redirect_uri
            )
        except (ProviderAwayError, ProviderRefusedError, ValueError) as error:
            return _failed(str(error), 503)
        until_s = self._clock() + WAIT_S
        begun = _Begun(until_s, cookie, verifier, nonce, redirect_uri, wanted)
        self._browsers.put(state, begun)
        answer = RedirectResponse(place, 303, headers={"cache-control": "no-store"})
        answer.set_cookie(
            self.cookie_name, cookie, max_age=int(WAIT_S), path="/",
            secure=self._scheme == "https", httponly=True, samesite="lax",
        )  # fmt: skip
        return answer

    async def finish(self, request: Request, cookie: str | None) -> SignedIn | Response:
        """The browser is back. The page of a failure says why."""
        self._counted()
        asked = request.query_params
        begun = self._browsers.pop(asked.get("state", ""), None)
        if (
            begun is None
            or begun.until_s <= self._clock()
            or not secrets.compare_digest(begun.cookie.encode(), (cookie or "").encode())
        ):
            return _failed("this sign-in was not begun here, or was begun too long ago", 400)
        if asked.get("iss", self.logins.provider.settings.issuer) != (
            self.logins.provider.settings.issuer
        ):
            return _failed("the answer is of another provider", 400)
        if "error" in asked or "code" not in asked:
            return _failed(f"the provider said: {asked.get('error', 'nothing')}", 403)
        try:
            granted = await self.logins.provider.exchange(
                asked["code"], begun.redirect_uri, begun.verifier
            )
            token, principal = await self.logins.begin(granted, begun.nonce)
        except (ProviderAwayError, ValueError) as error:
            return _failed(str(error), 503)
        except _REFUSED as error:
            return _failed(str(error), 403)
        return SignedIn(token, principal, begun.next)

    async def begin_device(self) -> Response:
        """The codes for a terminal. Raises a 503 or 404 problem."""
        self._counted()
        handle, verifier = (secrets.token_urlsafe(32) for _ in range(2))
        try:
            found = await self.logins.provider.begin_device(verifier)
        except (ProviderAwayError, ValueError) as error:
            raise unavailable("provider-away", str(error)) from None
        except ProviderRefusedError as error:
            raise ProblemError(404, "no-device-flow", f"the provider refuses: {error}") from None
        expires_s = min(_number(found.get("expires_in"), WAIT_S), WAIT_S)
        interval_s = max(1.0, _number(found.get("interval"), 5.0))
        until_s = self._clock() + expires_s
        self._devices.put(handle, _Device(until_s, found["device_code"], verifier, interval_s))
        return _json(
            {
                "handle": handle,
                "user_code": found["user_code"],
                "verification_uri": found["verification_uri"],
                "verification_uri_complete": found.get("verification_uri_complete"),
                "interval_s": interval_s,
                "expires_s": expires_s,
            }
        )

    async def poll_device(self, handle: str) -> SignedIn | Response:
        """The sign-in of a terminal; a 202 while the person has not typed the code."""
        self._counted()
        found, now_s = self._devices.get(handle), self._clock()
        if found is None or found.until_s <= now_s:
            self._devices.pop(handle, None)
            raise ProblemError(410, "sign-in-over", "this sign-in is over; begin again")
        if now_s - found.asked_s < found.interval_s * 0.9:
            return _json({"state": "pending", "interval_s": found.interval_s}, 202)
        found.asked_s = now_s
        try:
            return await self._device_done(handle, found)
        except (ProviderAwayError, ValueError) as error:
            raise unavailable("provider-away", str(error)) from None
        except _REFUSED as error:
            self._devices.pop(handle, None)
            raise ProblemError(403, "sign-in-refused", str(error)) from None

    async def _device_done(self, handle: str, found: _Device) -> SignedIn | Response:
        try:
            granted: Granted = await self.logins.provider.poll_device(
                found.device_code, found.verifier
            )
        except ProviderRefusedError as error:
            if error.code not in {"authorization_pending", "slow_down"}:
                raise
            if error.code == "slow_down":
                found.interval_s += 5
            return _json({"state": "pending", "interval_s": found.interval_s}, 202)
        self._devices.pop(handle, None)
        token, principal = await self.logins.begin(granted, None)
        return SignedIn(token, principal, "")

    def _counted(self) -> None:
        """Of all together, since no user is known yet. Raises a 429 problem."""
        self._rates.count("")


def token_answer(done: SignedIn, seconds: float) -> Response:
    """The token of a sign-in, for a terminal."""
    return _json({"token": done.token, "user": done.principal.name, "expires_s": int(seconds)})


def onward(wanted: str) -> Response:
    """A page that leads to another one of ours.

    A redirect would still count as sent by the provider's site, so browsers would not send the
    session's cookie, which is SameSite=Strict.
    """
    place = html.escape(wanted, quote=True)
    return plain_page("Signed in", f'<p><a id="go" href="{place}">Continue</a></p>', script=_GO)


def _failed(reason: str, status: int) -> Response:
    text = html.escape(reason)
    body = f'<p class="bad" role="alert">{text}</p><p><a href="/session">Try again</a></p>'
    return plain_page("You are not signed in", body, status)


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return JSONResponse(content, status, headers={"cache-control": "no-store"})


def _number(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e6 else otherwise
