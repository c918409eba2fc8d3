"""A job's secrets by name, read at launch from `<folder>/<team>/<NAME>`."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
_LIMIT_BYTES = 64 * 1024
IMAGE_LOGINS = "IMAGE_AUTH"
"""A team's logins for registries of images, which the agent uses and no job gets."""


class SecretMissing(Exception):
    """A secret cannot be given to the job; the message names it and never holds a value."""


def read_secrets(folder: Path, team: str, names: Iterable[str]) -> dict[str, str]:
    """The values by name; one trailing newline is not part of a value.

    Raises SecretMissing: the file does not exist, others may read it, or it is not text.
    """
    wanted = tuple(names)
    if IMAGE_LOGINS in wanted:
        raise SecretMissing(f"secrets: {IMAGE_LOGINS} is for the agent alone; jobs do not get it")
    return {name: read_secret(folder, team, name) for name in wanted}


def read_secret(folder: Path, team: str, name: str) -> str:
    """One value, also that of IMAGE_LOGINS. Raises SecretMissing."""
    if not _NAME.match(name):
        raise SecretMissing("secrets: a name is not made of letters, digits and '_'")
    try:
        descriptor = os.open(folder / team / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        raise SecretMissing(
            f"secrets: team {team} has no secret {name}; ask an operator to add it"
        ) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & 0o077:
            raise SecretMissing(
                f"secrets: {name} of team {team} is readable by others; its file must be 0600"
            )
        raw = file.read(_LIMIT_BYTES + 1)
    try:
        value = raw.decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise SecretMissing(f"secrets: {name} of team {team} is no UTF-8 text") from None
    if len(raw) > _LIMIT_BYTES or "\0" in value or not value:
        raise SecretMissing(f"secrets: {name} of team {team} is empty, above 64 KiB or holds a NUL")
    return value
