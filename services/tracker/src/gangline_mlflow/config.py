"""Settings of the MLflow server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gangline_schemas.base import Identifier
from gangline_schemas.gpu_prices import WrittenPrices
from gangline_schemas.mlflow_workspace import workspace_of
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
    """Load MLflow with the first request: 5 s later, and 210 MB less until then."""
    store_url: str
    """The object store; artifacts are kept below `mlflow/` there."""
    mlflow_artifact_bytes: Annotated[int, Field(ge=1)] | None = None
    """The most bytes of artifacts that a team may store; None: no limit."""
    mlflow_artifact_bytes_of: dict[Identifier, Annotated[int, Field(ge=0)]] = Field(
        default_factory=dict
    )
    """As JSON: the limits of teams that have one of their own, by team."""
    mlflow_presigned: bool = False
    """Clients reach the S3 server under the endpoint of `store_url`: large files go there directly,
    by presigned URLs."""
    gpu_prices: WrittenPrices = Field(default_factory=dict)
    """As the gateway's: the price of a GPU-hour by model or family. Runs of jobs get a cost."""
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

    @model_validator(mode="after")
    def _check_presigned(self) -> Self:
        if self.mlflow_presigned and urlsplit(self.store_url).scheme != "s3":
            raise ValueError("mlflow_presigned needs an s3:// store_url")
        return self

    def limits(self) -> dict[str, int]:
        """The limits of bytes by workspace."""
        return {workspace_of(team): size for team, size in self.mlflow_artifact_bytes_of.items()}

    @property
    def artifacts_url(self) -> str:
        """The store of artifacts: the folder `mlflow/` of the object store."""
        if self.store_url.startswith("/"):
            return f"{self.store_url.rstrip('/')}/mlflow"
        parts = urlsplit(self.store_url)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/mlflow"))
