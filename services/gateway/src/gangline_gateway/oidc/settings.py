"""The file of the sign-in: the provider, this client, and what each group may do.

issuer = "https://sso.example.org/realms/main"
client_id = "gangline"
client_secret_file = "/etc/gangline/oidc-secret"

[groups]
research = {teams = ["research"]}
gangline-admins = {role = "admin"}
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from gangline_schemas.access import MOST_DAYS
from gangline_schemas.base import Identifier, Model, field_errors
from gangline_schemas.limits import Name
from gangline_service.loopback import is_loopback
from gangline_service.tokens import Principal, Role


class OidcFileError(Exception):
    """The file cannot be used. The message names what is wrong and the way out."""


class GroupRights(Model):
    """The rights of the members of a group."""

    role: Literal["member", "admin"] = "member"
    teams: tuple[Identifier, ...] = ()

    @model_validator(mode="after")
    def _gives_something(self) -> Self:
        if self.role == "member" and not self.teams:
            raise ValueError("must name teams, or the role admin")
        return self


class OidcSettings(Model):
    """The whole file."""

    issuer: str
    client_id: Name
    client_secret_file: Path | None = None
    """None: a public client, which proves itself by PKCE alone."""
    ca_file: Path | None = None
    """Of the authority that signed the provider's certificate; None: the system's."""
    scopes: tuple[Name, ...] = ("openid", "profile", "email")
    """`offline_access` too, if the provider gives refresh tokens only then."""
    user_claim: Name = "preferred_username"
    groups_claim: Name = "groups"
    groups: Annotated[dict[Name, GroupRights], Field(min_length=1, max_length=10_000)]
    session_hours: Annotated[float, Field(gt=0, le=720)] = 12.0
    """A sign-in ends after this time at the latest."""
    token_days: Annotated[int, Field(ge=1, le=MOST_DAYS)] = 30
    """A personal access token is refused when its owner did not sign in for so many days."""

    @field_validator("issuer")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        check_url(value)
        return value

    def secret(self) -> str:
        """The client's secret; "" for a public client. Raises OidcFileError."""
        if self.client_secret_file is None:
            return ""
        try:
            return self.client_secret_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise OidcFileError(
                f"client_secret_file {self.client_secret_file} cannot be read: {error.strerror}"
            ) from None

    def groups_of(self, claims: dict[str, Any]) -> tuple[str, ...]:
        """A person's groups, of those that have rights here."""
        given = claims.get(self.groups_claim, [])
        named = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        return tuple(one for one in named if isinstance(one, str) and one in self.groups)

    def rights(self, name: str, groups: tuple[str, ...]) -> Principal | None:
        """The rights that a person has by groups; None: none."""
        found = [self.groups[one] for one in groups if one in self.groups]
        if not found:
            return None
        admin = any(rights.role == "admin" for rights in found)
        return Principal(
            name=name,
            role=Role.ADMIN if admin else Role.MEMBER,
            teams=frozenset(team for rights in found for team in rights.teams),
            via="sign-in",
        )


def read_settings(path: Path) -> OidcSettings:
    """The settings of a file; files in it are relative to it. Raises OidcFileError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        found = OidcSettings.model_validate(content)
    except OSError as error:
        raise OidcFileError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OidcFileError(f"{path} is no TOML: {error}") from None
    except ValidationError as error:
        first = field_errors(error, model=OidcSettings)[0]
        raise OidcFileError(f"{path}: {first.field}: {first.message}") from None
    files = {
        name: path.parent / file
        for name in ("client_secret_file", "ca_file")
        if (file := getattr(found, name)) is not None
    }
    return found.model_copy(update=files)


def check_url(url: str) -> None:
    """Raises ValueError unless a URL is https, or of this machine."""
    parts = urlsplit(url)
    local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if not parts.hostname or (parts.scheme != "https" and not local):
        raise ValueError("must be an https:// URL")
