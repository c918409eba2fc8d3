"""Receivers of notifications: where they are, and the names of their secrets.

A secret is never in the file: a receiver names it, and it is read from the folder of secrets at
each delivery, so that it can be renewed while the service runs.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from gangline_schemas.base import Identifier, Model
from gangline_schemas.limits import Port, ShortText

MOST_SECRET_BYTES = 64 * 1024
SecretName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")]
Url = Annotated[
    str, StringConstraints(pattern=r"^https?://[^\s/?#@]+(/[^\s#]*)?$", max_length=2000)
]
_ATOM = r"[\w!#$%&'*+/=^`{|}~-]+"
Address = Annotated[
    str,
    StringConstraints(pattern=rf"^{_ATOM}(\.{_ATOM})*@[\w-]+(\.[\w-]+)*$", max_length=320),
]
"""A mail address without quotes, comments or encoded words: Python's parser fails at some."""


class SecretMissingError(Exception):
    """A secret cannot be read; the message names it and says why, never its value."""


class _Target(Model):
    teams: tuple[Identifier, ...] = Field(
        default=(), description="Teams whose jobs may notify it; empty: all."
    )


class Webhook(_Target):
    """An HTTP server that takes signed CloudEvents."""

    kind: Literal["webhook"] = "webhook"
    url: Url
    signing_key: SecretName | None = Field(
        default=None, description="The name of the secret that signs; none: unsigned."
    )
    allow_private: bool = Field(
        default=False, description="The address may be private, of this machine, or reserved."
    )


class Slack(_Target):
    """An incoming webhook of Slack, or of a chat that takes the same form."""

    kind: Literal["slack"]
    url_secret: SecretName = Field(description="The name of the secret that holds the URL.")
    allow_private: bool = False


class Email(_Target):
    """A mailbox, by SMTP."""

    kind: Literal["email"]
    to: tuple[Address, ...] = Field(min_length=1, max_length=32)
    sender: Address
    host: ShortText
    port: Port = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    user: ShortText | None = None
    password: SecretName | None = Field(default=None, description="The name of the secret.")


Target = Annotated[Webhook | Slack | Email, Field(discriminator="kind")]


class Secrets:
    """The folder of secrets: a file for each, readable by the service's user alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, name: str) -> str:
        """The secret of this name, without a last line break. Raises SecretMissingError."""
        if self._folder is None:
            raise SecretMissingError(
                f"the secret '{name}' cannot be read: set GANGLINE_ALERT_SECRETS_DIR"
            )
        try:
            with (self._folder / name).open("rb") as file:
                open_to_others = os.fstat(file.fileno()).st_mode & (stat.S_IRWXO)
                value = file.read(MOST_SECRET_BYTES + 1)
        except OSError as error:
            raise SecretMissingError(
                f"the secret '{name}' cannot be read: {error.strerror}"
            ) from None
        if open_to_others:
            raise SecretMissingError(
                f"the secret '{name}' can be read by all users; set its mode to 0600"
            )
        text = value.decode(errors="replace").rstrip("\r\n")
        if not text or len(value) > MOST_SECRET_BYTES:
            raise SecretMissingError(f"the secret '{name}' is empty or too large")
        return text
