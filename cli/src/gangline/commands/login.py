"""`gangline login` and `gangline logout`: sign in at the platform's OpenID provider."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from gangline.connection import URL_VARIABLE
from gangline.errors import CliError, ExitCode
from gangline.local.client import Login, default_data_dir, forget_login, read_client, read_login
from gangline.output import Output
from gangline.sdk import Gangline
from gangline.session import DataDir, Json, Url, target_of
from gangline.transport import CA_VARIABLE, Transport
from gangline_schemas.api.access import LoginBegun, LoginToken

_LEAST_POLL_S = 0.05


def login(
    context: typer.Context,
    *,
    url: Url = None,
    ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The authority of the gateway's certificate."),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Sign in at the platform's provider; further commands then need no token."""
    target = target_of(context, url, None, data_dir, json=json)
    folder, out = target.data_dir or default_data_dir(), Output(json=target.json)
    place = target.url or os.environ.get(URL_VARIABLE) or _known_url(folder)
    authority = ca.resolve() if ca is not None else _known_ca(folder, place)
    with Gangline(Transport(place, "", notice=out.note, ca=authority)) as client:
        begun = client.begin_login()
        where = begun.verification_uri_complete or begun.verification_uri
        out.note(f"open {where}")
        out.note(f"and confirm the code {begun.user_code}")
        found = _wait(client, begun)
    Login(place, found.token, found.user, ca=str(authority or "")).write(folder)
    hours = f"{found.expires_s / 3600:g}"
    shown = {"url": place, "user": found.user, "expires_s": found.expires_s}
    out.show(shown, f"signed in to {place} as {found.user}, for {hours} hours at most")


def logout(context: typer.Context, *, data_dir: DataDir = None, json: Json = False) -> None:
    """End the sign-in, here and at the gateway."""
    target = target_of(context, None, None, data_dir, json=json)
    folder, out = target.data_dir or default_data_dir(), Output(json=target.json)
    known = read_login(folder)
    if known is None:
        out.show({"ended": False}, "you were not signed in")
        return
    forget_login(folder)
    try:
        with Gangline(Transport(known.url, known.token, ca=known.authority)) as client:
            client.logout()
    except CliError as error:
        out.note(f"the sign-in was not ended at the gateway: {error.message}")
    out.show({"ended": True}, f"signed out of {known.url}")


def _wait(client: Gangline, begun: LoginBegun) -> LoginToken:
    """Until the person has confirmed the code. Raises CliError."""
    deadline = time.monotonic() + begun.expires_s
    while (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(max(begun.interval_s, _LEAST_POLL_S), left_s))
        found = client.login_token(begun.handle)
        if found is not None:
            return found
    raise CliError("the code was not confirmed in time", "run gangline login again")


def _known_url(folder: Path) -> str:
    known = read_login(folder) or read_client(folder)
    if known is None:
        raise CliError(
            "no gateway is known", f"give its --url, or set {URL_VARIABLE}", ExitCode.USAGE
        )
    return known.url


def _known_ca(folder: Path, url: str) -> Path | None:
    """The authority with which this URL was reached before, or that of the environment."""
    for known in (read_login(folder), read_client(folder)):
        if known is not None and known.is_at(url) and known.ca:
            return known.authority
    named = os.environ.get(CA_VARIABLE, "")
    return Path(named) if named else None
