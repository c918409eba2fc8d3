"""Settings of the MLflow server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, field_validator

from gangline_service.settings import ServiceSettings

_DATABASES = ("sqlite", "postgresql")


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
    """Load MLflow with the first request: 5 s later, and 200 MB less until then."""
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
        parts = urlsplit(self.store_url)
        if parts.scheme == "file":
            return f"{parts.path.rstrip('/')}/mlflow", {}
        endpoint = parse_qs(parts.query).get("endpoint")
        variables = {"MLFLOW_S3_ENDPOINT_URL": endpoint[0]} if endpoint else {}
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/mlflow", variables
