"""Which gateway to talk to and with whose token: arguments, environment, data directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gangline.local.client import default_data_dir, no_client, read_client
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

    The defaults are GANGLINE_URL and GANGLINE_TOKEN, then `client.json` in the
    data directory. That file's token is only ever sent to that file's URL. A data directory that
    is given goes before the environment. Raises CliError.
    """
    if data_dir is None:
        url = url or os.environ.get(URL_VARIABLE)
        token = token or os.environ.get(TOKEN_VARIABLE)
    folder = data_dir or default_data_dir()
    if url is None or token is None:
        local = read_client(folder)
        if local is None and url is None:
            raise no_client(folder, f"set {URL_VARIABLE} and {TOKEN_VARIABLE}")
        if local is not None:
            url = url or local.url
            if token is None and url.rstrip("/") == local.url.rstrip("/"):
                token = local.token
    assert url is not None  # noqa: S101 -- for mypy
    return Transport(url, token or "", notice=notice)
