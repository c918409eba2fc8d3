"""Names and passwords for registries, from files in the format of Docker's config.json.

A team has its own as the secret `IMAGE_AUTH` on the node; the node's file is for all teams. They
stay in this process: never in an event, a log or an error.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline_schemas.image_reference import DEFAULT_REGISTRY

_DOCKER_HUB = "https://index.docker.io/v1/"


class BadCredentials(Exception):
    """A file of credentials cannot be read; the message never holds a value."""


@dataclass(frozen=True, slots=True)
class Login:
    """A user of a registry."""

    user: str
    password: str = field(repr=False)

    @property
    def basic(self) -> str:
        """The value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def login_for(registry: str, files: Mapping[str, str]) -> Login | None:
    """The login of the first file that has one for the registry.

    `files` are texts by a name that errors may show. Raises BadCredentials.
    """
    for name, text in files.items():
        found = _logins(name, text).get(registry)
        if found is not None:
            return found
    return None


def read_file(path: Path) -> str:
    """The text of the node's file. Raises BadCredentials."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadCredentials(f"{path} cannot be read: {type(error).__name__}") from None


def _logins(name: str, text: str) -> dict[str, Login]:
    try:
        given = json.loads(text)["auths"]
        return {_host(key): _login(value) for key, value in given.items() if value}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadCredentials(
            f'{name} is not like {{"auths": {{"REGISTRY": {{"auth": "BASE64"}}}}}}'
        ) from None


def _login(value: Mapping[str, Any]) -> Login:
    if "auth" in value:
        user, _, password = base64.b64decode(value["auth"], validate=True).decode().partition(":")
        return Login(user, password)
    return Login(str(value["username"]), str(value["password"]))


def _host(key: str) -> str:
    if key in {_DOCKER_HUB, "index.docker.io", "registry-1.docker.io"}:
        return DEFAULT_REGISTRY
    return key.removeprefix("https://").removeprefix("http://").partition("/")[0]
