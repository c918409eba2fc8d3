"""The SCRAM users of a Kafka cluster, one for each part, and their files of settings.

`DIR/NAME.toml` holds what the part NAME needs to connect: set GANGLINE_KAFKA_FILE to it. The file
has mode 0600. Kafka tells no passwords, so the file is the only place that has it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from gangline.errors import CliError
from gangline.kafka.connecting import ADMIN_TIMEOUT_S, admin_errors, read_settings
from gangline_service.kafka_file import write_kafka_file

MECHANISM = "SCRAM-SHA-512"
_ITERATIONS = 4096
_PASSWORD_BYTES = 24
_AGAIN = (
    "run the command again: Kafka may have taken a new password although it did not say so, and "
    "then refuses the one in the file"
)
_KEPT = ("ssl.ca.location", "ssl.endpoint.identification.algorithm")
"""Of the administrator's settings: how any client recognizes the brokers."""


@dataclass(frozen=True, slots=True)
class UserPlan:
    """`create`: missing in Kafka. `unknown`: in Kafka, but `DIR` has no password of it."""

    create: tuple[str, ...]
    unknown: tuple[str, ...]
    same: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether the cluster lacks a user."""
        return bool(self.create)


@dataclass(frozen=True)
class UserFiles:
    """The folder of the files. `common`: what all of them hold beside user and password."""

    folder: Path
    common: Mapping[str, str]

    @classmethod
    def beside(cls, folder: Path, admin: Mapping[str, str]) -> UserFiles:
        """For clients of the cluster that `admin` connects to."""
        common = {"security.protocol": "SASL_SSL", "sasl.mechanism": MECHANISM}
        return cls(folder, common | {name: admin[name] for name in _KEPT if name in admin})

    def path(self, user: str) -> Path:
        """Where a user's settings are."""
        return self.folder / f"{user}.toml"

    def password(self, user: str) -> str | None:
        """The password in the user's file; None without a file. Raises CliError."""
        if not self.path(user).exists():
            return None
        found = read_settings(self.path(user)).get("sasl.password", "")
        if not found:
            raise CliError(f"{self.path(user)} has no sasl.password", "delete the file")
        return found

    def write(self, user: str, password: str) -> None:
        """Write the user's file. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {"sasl.username": user, "sasl.password": password}
        write_kafka_file(self.path(user), {**self.common, **own})


def plan_users(admin: AdminClient, users: Iterable[str], files: UserFiles) -> UserPlan:
    """Compare the cluster with the files. Raises CliError."""
    with admin_errors("the users cannot be read"):
        # All users: for a list of names Kafka answers with an error for each that is missing.
        known = set(
            admin.describe_user_scram_credentials(request_timeout=ADMIN_TIMEOUT_S).result(  # type: ignore[union-attr]
                ADMIN_TIMEOUT_S
            )
        )
    wanted = tuple(users)
    there = {user: files.password(user) for user in wanted if user in known}
    return UserPlan(
        create=tuple(user for user in wanted if user not in known),
        unknown=tuple(user for user, password in there.items() if password is None),
        same=tuple(user for user, password in there.items() if password is not None),
    )


def create_users(admin: AdminClient, users: Iterable[str], files: UserFiles) -> None:
    """Create users with the password of their file, or a new one. Raises CliError."""
    passwords = {user: files.password(user) or _new_password() for user in users}
    for user, password in passwords.items():
        files.write(user, password)
    _set(admin, passwords, set())


def rotate_users(admin: AdminClient, users: Iterable[str], files: UserFiles) -> None:
    """Give users new passwords. Raises CliError, OSError; then the files hold the old ones again.

    The files of users that Kafka has changed by then stay new. A file comes before its user: a
    client that Kafka refuses reads it again (`KafkaBus`). Connections that are open stay open.
    """
    before = {user: files.password(user) for user in users}
    passwords = {user: _new_password() for user in before}
    changed: set[str] = set()
    try:
        for user, password in passwords.items():
            files.write(user, password)
        _set(admin, passwords, changed)
    except BaseException as error:
        for user, old in before.items():
            if user in changed or files.password(user) == old:
                continue
            if old is None:
                files.path(user).unlink(missing_ok=True)
            else:
                files.write(user, old)
        if isinstance(error, CliError):
            hint = f"{error.hint}; {_AGAIN}" if error.hint else _AGAIN
            raise CliError(error.message, hint) from None
        raise


def _set(admin: AdminClient, passwords: Mapping[str, str], changed: set[str]) -> None:
    """Adds to `changed` the users for which Kafka confirms it. Raises CliError."""
    if not passwords:
        return
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
    changes = [
        UserScramCredentialUpsertion(user, how, password.encode(), secrets.token_bytes(16))
        for user, password in passwords.items()
    ]
    with admin_errors("the users cannot be changed"):
        futures = admin.alter_user_scram_credentials(changes, request_timeout=ADMIN_TIMEOUT_S)  # type: ignore[arg-type]
        wait(futures.values(), ADMIN_TIMEOUT_S)
        changed |= {
            user for user, future in futures.items() if future.done() and future.exception() is None
        }
        for future in futures.values():
            future.result(0)


def _new_password() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES)
