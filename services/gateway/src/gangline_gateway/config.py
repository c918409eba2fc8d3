"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gangline_gateway.user_limits import RequestLimits
from gangline_schemas.data_use import ApprovalRule
from gangline_schemas.gpu_prices import WrittenPrices
from gangline_service.connections import ConnectionLimits
from gangline_service.loopback import is_loopback
from gangline_service.settings import ServiceSettings


class Settings(ServiceSettings):
    """Settings as GANGLINE_ variables or in the table [gateway].

    Each request needs a token of `tokens_file`, on loopback too. An address that other machines
    can reach also needs TLS; without it the gateway does not start.
    """

    section: ClassVar[str] = "gateway"

    gateway_host: str = "127.0.0.1"
    gateway_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port 0 takes a free one."""
    gateway_file: Path | None = None
    """Where the bound address is written as JSON; see `bound_address.BoundAddress`."""
    tokens_file: Path
    """Tokens of users and services; see gangline_service.tokens."""
    sessions_file: Path | None = None
    """Where sessions of browsers survive a restart, of this gateway alone; None: they end."""
    oidc_file: Path | None = None
    """The sign-in at an OpenID provider; see gangline_gateway.oidc.settings. None: tokens alone."""
    sign_ins_file: Path | None = None
    """Where these sign-ins survive a restart, of this gateway alone; None: they end."""
    allowed_hosts: tuple[str, ...] = ()
    """Names (name or name:port) under which clients reach the gateway, besides loopback's."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    clickhouse_url: str | None = None
    """The http(s):// URL of the tracker's endpoint or of a ClickHouse server."""
    clickhouse_user: str = "default"
    service_token: SecretStr | None = None
    """The password for ClickHouse, and the gateway's token for MLflow."""
    mlflow_url: str | None = None
    """The http:// URL of `gangline_mlflow` on this machine; without one, /mlflow is not served."""
    mlflow_requests_per_s: Annotated[float, Field(gt=0)] = 2000.0
    """Requests of one token to MLflow a second, on average; further ones get 429."""
    console_url: str | None = None
    """The http:// URL of `gangline_console`; without one, /console is not served."""
    gpu_prices: WrittenPrices = Field(default_factory=dict)
    """The price of a GPU-hour by model or family, such as {"h100": 2.5, "a100-80gb": 1.2}.

    With them runs have costs; a run on any other model has none.
    """
    store_url: str | None = None
    """The store of code bundles and snapshots, the scheduler's too; see gangline_storage.open."""
    snapshot_every: Annotated[int, Field(ge=1)] = 20_000
    """The gateway writes a snapshot after this many decisions."""
    data_approvals: ApprovalRule = ApprovalRule.OFF
    """Must equal quota's setting: only quota decides, and dry runs use this value."""
    alerts_file: Path | None = None
    """Must equal the setting of the alerts service, which alone decides: rules are shown from it.

    Without one, the rules' defaults are shown.
    """
    nodes_file: Path | None = None
    """Settings of nodes that join (node_settings.py); without one, no node joins by a token."""
    answer_wait_s: Annotated[float, Field(ge=0, le=60)] = 2.0
    """How long a request waits for the decision about it."""
    streams_at_once: Annotated[int, Field(ge=1)] = 500
    """Open event streams; further ones get 503."""
    streams_per_user: Annotated[int, Field(ge=1)] = 100
    """Open event streams of one token; further ones get 429."""
    requests_per_s: Annotated[float, Field(gt=0)] = 100.0
    """Requests of one token a second, on average; further ones get 429."""
    requests_burst: Annotated[int, Field(ge=1)] = 300
    """Requests of one token that may come at once after a pause."""
    requests_at_once: Annotated[int, Field(ge=1)] = 32
    """Unanswered requests of one token; further ones get 429."""
    connections_per_user: Annotated[int, Field(ge=1)] = 200
    """Open connections of one token; a further one closes an idle one, or gets 429."""
    connections: Annotated[int, Field(ge=1)] = 1500
    """Open connections with a valid token."""
    connections_unproven: Annotated[int, Field(ge=16)] = 256
    """Open connections without a token yet; a further one closes the oldest of its address."""

    @field_validator("clickhouse_url")
    @classmethod
    def _check_clickhouse(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be a URL such as http://127.0.0.1:8123")
        if parts.username or parts.password:
            raise ValueError(
                "must not contain credentials; set clickhouse_user and service_token instead"
            )
        return value.rstrip("/")

    @field_validator("mlflow_url", "console_url")
    @classmethod
    def _check_served(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise ValueError("must be a URL without a path, such as http://127.0.0.1:8090")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _knows_mlflow(self) -> Self:
        if self.mlflow_url is not None and self.service_token is None:
            raise ValueError("mlflow_url needs service_token, which MLflow's server asks for")
        return self

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("set both tls_cert and tls_key, or neither")
        if not self.loopback and self.tls_cert is None:
            raise ValueError(
                "gateway_host is reachable from other machines: set tls_cert and tls_key, "
                "or bind to 127.0.0.1"
            )
        return self

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Certificate and key, None for plain HTTP."""
        cert, key = self.tls_cert, self.tls_key
        return None if cert is None or key is None else (cert, key)

    def request_limits(self) -> RequestLimits:
        """Limits of one user's requests."""
        return RequestLimits(self.requests_per_s, self.requests_burst, self.requests_at_once)

    def mlflow_limits(self) -> RequestLimits:
        """Limits of one user's requests to MLflow."""
        return RequestLimits(
            self.mlflow_requests_per_s,
            round(2 * self.mlflow_requests_per_s),
            2 * self.requests_at_once,
        )

    def connection_limits(self) -> ConnectionLimits:
        """Limits of open connections."""
        return ConnectionLimits(
            unproven=self.connections_unproven,
            proven=self.connections,
            per_user=self.connections_per_user,
        )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.gateway_host)

    @property
    def scheme(self) -> Literal["http", "https"]:
        """How clients reach the gateway."""
        return "http" if self.tls_cert is None else "https"
