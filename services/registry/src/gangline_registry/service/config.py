"""Settings of the registry."""

from __future__ import annotations

from typing import ClassVar

from pydantic import SecretStr

from gangline_service.settings import DecidingSettings


class RegistrySettings(DecidingSettings):
    """The settings of the registry."""

    section: ClassVar[str] = "registry"

    mlflow_url: str | None = None
    """The MLflow server of this installation; without one, versions cannot be registered."""
    service_token: SecretStr | None = None
    """A token with the role service, as the MLflow server asks for it."""
