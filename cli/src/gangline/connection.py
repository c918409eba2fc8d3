"""Which gateway to talk to, and with whose token: arguments, environment, sign-in, local files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gangline.local.client import Reached, default_data_dir, no_client, read_client, read_login
from gangline.transport import Transport

URL_VARIABLE = "GANGLINE_URL"
TOKEN_VARIABLE = "GANGLINE_TOKEN"  # noqa: S105 -- the variable's name, not a token


def find_gateway(
    url: str | None,
    token: str | None,
    data_dir: Path | None,
    *,
    notice: Callable[[str], None] = lambda _: None,
) -> Transport:
    """The transport to the chosen gateway.

    The defaults are GANGLINE_URL and GANGLINE_TOKEN, then the sign-in of `gangline login`, then
    `client.json` in the data directory. A token of these files is only ever sent to the URL of its
    file. A data directory that is given goes before the environment, and its platform before a
    sign-in. Raises CliError.
    """
    if data_dir is None:
        url = url or os.environ.get(URL_VARIABLE)
        token = token or os.environ.get(TOKEN_VARIABLE)
    folder = data_dir or default_data_dir()
    known: list[Reached] = []
    if url is None or token is None or url.startswith("https:"):
        found = (read_login(folder), read_client(folder))
        known = [one for one in (found if data_dir is None else found[::-1]) if one is not None]
    if url is None:
        if not known:
            raise no_client(folder, f"set {URL_VARIABLE} and {TOKEN_VARIABLE}")
        url = known[0].url
    same = [one for one in known if one.is_at(url)]
    if token is None:
        token = same[0].token if same else ""
    return Transport(url, token, notice=notice, ca=same[0].authority if same else None)
