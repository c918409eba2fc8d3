"""Questions of the registry service to the MLflow server, which no user can ask."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from gangline_schemas.base import Model
from gangline_schemas.limits import Label, Message, Name
from gangline_schemas.models import AliasName, MaybeVersion, ModelName, Version

VERSIONS_PATH = "/gangline/registry/versions"
ALIASES_PATH = "/gangline/registry/aliases"
REGISTRATION_TAG = "gangline.registration"
MOST_ALIASES = 100_000
"""Of the gates of all teams; the registry refuses a gate that would protect more."""


class VersionQuery(Model):
    """The version of this number, or the one that a registration makes of a source, once.

    With both: the version of this number, if it has the source still; else one that is made.
    """

    workspace: Name
    model: ModelName
    version: Version | None = None
    run_id: Name | None = None
    source: Name | None = None
    description: Message = ""
    tags: dict[Name, Label] = Field(default_factory=dict, max_length=32)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.version is None and self.source is None:
            raise ValueError("give a version or a source")
        if REGISTRATION_TAG not in self.tags:
            raise ValueError(f"tags: {REGISTRATION_TAG} is missing")
        return self


class VersionAnswer(Model):
    """The number of the version."""

    version: Version


class AliasRow(Model):
    """A protected alias. `version` 0: it is protected, and left as it is."""

    workspace: Name
    model: ModelName
    alias: AliasName
    version: MaybeVersion
    keep: tuple[Version, ...] = Field(
        default=(), max_length=1000, description="Versions that may not be deleted."
    )


class AliasesQuery(Model):
    """All protected aliases; others are not protected any more."""

    aliases: tuple[AliasRow, ...] = Field(default=(), max_length=MOST_ALIASES)


class AliasesAnswer(Model):
    """The rows that were otherwise. `repaired` has the versions that were found; 0: none."""

    repaired: tuple[AliasRow, ...] = ()
    missing: tuple[AliasRow, ...] = ()
