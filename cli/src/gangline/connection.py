"""Which gateway to talk to and with whose token: arguments, environment, data directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gangline.errors import CliError
from gangline.local.client import default_data_dir, read_client
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
        local = _local(folder)
        if local is None and url is None:
            raise CliError(
                f"no platform is known: there is no {folder / 'client.json'}",
                f"start one with `gangline up`, or set {URL_VARIABLE} and {TOKEN_VARIABLE}",
            )
        if local is not None:
            url = url or local[0]
            if token is None and url.rstrip("/") == local[0].rstrip("/"):
                token = local[1]
    assert url is not None  # noqa: S101 -- for mypy
    return Transport(url, token or "", notice=notice)


def _local(folder: Path) -> tuple[str, str] | None:
    try:
        client = read_client(folder)
    except (OSError, ValueError, TypeError):
        raise CliError(
            f"{folder / 'client.json'} cannot be read", "`gangline up` writes it again"
        ) from None
    return (client.url, client.token) if client else None
