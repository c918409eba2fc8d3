"""Settings of the console."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from gangline_service.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings as GANGLINE_ variables or in the table [console]."""

    section: ClassVar[str] = "console"

    console_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where the gateway reaches it, on 127.0.0.1; port 0 takes a free one."""
    console_file: Path | None = None
    """Where the bound address is written as JSON; see `bound_address.BoundAddress`."""
    console_gateway_url: str
    """The http(s):// URL of the gateway, whose REST the pages read."""
    console_gateway_ca: Path | None = None
    """The file of the authority that signed the gateway's certificate; None: the system's."""
    service_token: SecretStr
    """The key of the forms' CSRF tokens is derived from it; no request carries it."""

    @field_validator("console_gateway_url")
    @classmethod
    def _check_gateway(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be a URL such as http://127.0.0.1:8080")
        return value.rstrip("/")
