"""Settings of the MLflow server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import Field, SecretStr, field_validator

from gangline_service.settings import ServiceSettings

_DATABASES = ("sqlite", "postgresql")
_S3_VARIABLES = {"endpoint": "MLFLOW_S3_ENDPOINT_URL", "region": "AWS_DEFAULT_REGION"}
"""The settings that a store's URL may hold."""


class Settings(ServiceSettings):
    """Settings as GANGLINE_ variables or in the table [mlflow]."""

    section: ClassVar[str] = "mlflow"

    mlflow_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where the gateway reaches it, on 127.0.0.1; port 0 takes a free one."""
    mlflow_file: Path | None = None
    """Where the bound address is written as JSON; see `bound_address.BoundAddress`."""
    mlflow_database: str
    """sqlite:////absolute/file or postgresql://user@host/name: experiments, runs, models."""
    mlflow_lazy: bool = False
    """Load MLflow with the first request: 5 s later, and 210 MB less until then."""
    store_url: str
    """The object store; artifacts are kept below `mlflow/` there."""
    service_token: SecretStr
    """Requests must carry it: the gateway does. It is the password for ClickHouse, too."""
    clickhouse_url: str
    """The http(s):// URL of the tracker's endpoint or of a ClickHouse server."""
    clickhouse_user: str = "default"

    @field_validator("mlflow_database")
    @classmethod
    def _check_database(cls, value: str) -> str:
        if urlsplit(value).scheme not in _DATABASES:
            raise ValueError("must be sqlite:////absolute/file or postgresql://user@host/name")
        return value

    def artifacts(self) -> tuple[str, dict[str, str]]:
        """Where MLflow keeps artifacts, and the variables that its S3 client needs."""
        if self.store_url.startswith("/"):
            return f"{self.store_url.rstrip('/')}/mlflow", {}
        parts = urlsplit(self.store_url)
        path = f"{unquote(parts.path).rstrip('/')}/mlflow"
        if parts.scheme == "file":
            return path, {}
        given = dict(parse_qsl(parts.query))
        variables = {own: given[name] for name, own in _S3_VARIABLES.items() if name in given}
        return f"{parts.scheme}://{parts.netloc}{path}", variables
