"""Settings of the tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, SecretStr, model_validator

from gangline_service.settings import ServiceSettings
from gangline_tracker.engine import Engine
from gangline_tracker.reader import Limits


class Settings(ServiceSettings):
    """The tracker's settings, as GANGLINE_ variables or in the table [tracker]."""

    section: ClassVar[str] = "tracker"

    clickhouse: str
    """chdb:///absolute/path for the embedded engine, or the http(s):// URL of a server."""
    clickhouse_user: str | None = None
    clickhouse_password: SecretStr | None = None
    clickhouse_cluster: str | None = None
    """The name of a server's cluster: tables are made ON CLUSTER, and replicated by Keeper."""
    tokens_file: Path | None = None
    """The file of tokens that may query (gangline_service.tokens); the embedded engine needs it."""
    http_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where the embedded engine is served on 127.0.0.1; port 0 takes a free one."""
    http_file: Path | None = None
    """Where the bound address is written as JSON; see `bound_address.BoundAddress`."""
    query_time_s: Annotated[float, Field(gt=0)] = 30.0
    query_memory_mb: Annotated[int, Field(ge=64)] = 1024
    queries_at_once: Annotated[int, Field(ge=1, le=64)] = 2
    """Outside queries that run at a time; as many of Gangline's own services besides."""
    queries_per_user: Annotated[int, Field(ge=1, le=64)] = 4
    """Queries of one token that run at a time; 100 more wait, and further ones get 429."""

    @model_validator(mode="after")
    def _engine_is_usable(self) -> Self:
        engine = self.engine()
        if engine.embedded and self.tokens_file is None:
            raise ValueError("tokens_file must be set with the embedded engine")
        return self

    def engine(self) -> Engine:
        """The database."""
        password = self.clickhouse_password
        return Engine(
            self.clickhouse,
            self.clickhouse_user,
            password.get_secret_value() if password is not None else None,
            self.clickhouse_cluster,
        )

    def limits(self) -> Limits:
        """The limits of one outside query."""
        return Limits(
            time_s=self.query_time_s,
            memory_bytes=self.query_memory_mb << 20,
            at_once=self.queries_at_once,
        )
