"""Settings of a service: from GANGLINE_ variables and, below them, from one TOML file.

Precedence, highest first: arguments of `load`, the environment, the file that GANGLINE_CONFIG
names, the defaults. In the file, keys at the top hold for every service and a table named by
the class's `section` for that service alone:

    bootstrap_servers = "kafka-1:9092,kafka-2:9092"
    [kafka]
    "security.protocol" = "SASL_SSL"
    [scheduler]
    tick_interval_s = 0.5
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, Self
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gangline_bus.kafka_token import TOKEN_URL, TokenFile, TokenUnusable
from gangline_schemas.base import field_errors
from gangline_schemas.limits import PLAIN
from gangline_schemas.secrets import REDACTED, redact

from .config_file import ConfigFileError
from .kafka_file import read_kafka_file
from .redaction import is_secret_key

ENV_PREFIX = "GANGLINE_"
CONFIG_VARIABLE = "GANGLINE_CONFIG"
EXIT_USAGE = 2

SHARED = frozenset(
    {"alerts_file", "clickhouse_url", "gpu_prices", "snapshot_every", "store_url", "tokens_file"}
)
"""Keys that several services have: at the top of the file, the others pass over them."""
_SECRET_KAFKA_KEYS = frozenset({"ssl.key.pem", "ssl_key", "sasl.oauthbearer.config"})


class SettingsFileError(Exception):
    """The file of GANGLINE_CONFIG cannot be used; the message says why, without its values."""


def _default_instance() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _scalar_text(value: object) -> object:
    """Librdkafka takes strings; TOML and JSON also give numbers and booleans."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(item).lower() if isinstance(item, bool | int | float) else item
        for key, item in value.items()
    }


class _FileSource(InitSettingsSource):
    """The part of the TOML file that is this class's: top-level keys, then its own table."""

    def __init__(self, settings_cls: type[ServiceSettings], path: str) -> None:
        super().__init__(settings_cls, _read_file(settings_cls, Path(path)) if path else {})


def _read_file(settings_cls: type[ServiceSettings], path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsFileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsFileError("is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at .*\)$", str(error))
        raise SettingsFileError(f"is not TOML {place[0] if place else ''}".strip()) from None
    fields = settings_cls.model_fields
    own = content.pop(settings_cls.section, {}) if settings_cls.section not in fields else {}
    if not isinstance(own, dict):
        raise SettingsFileError(f"has `{settings_cls.section}`, which must be a table")
    shared = {key: value for key, value in content.items() if key in fields}
    unknown = [
        key
        for key, value in content.items()
        if key not in {*fields, *SHARED} and not isinstance(value, dict)  # another's table
    ] + [f"{settings_cls.section}.{key}" for key in own if key not in fields]
    if unknown:
        raise SettingsFileError(
            f"has unknown keys: {', '.join(unknown)}; correct or remove them (a key of a single "
            "service belongs in that service's table)"
        )
    return {**shared, **own}


class ServiceSettings(BaseSettings):
    """The settings of every service process. A service adds fields and a `section` name.

    Settings are frozen. Neither `repr` nor `model_dump` shows a secret: declare secrets as
    SecretStr, and `secret_values` then gives them to the log redaction.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=False,
    )
    section: ClassVar[str] = ""

    bootstrap_servers: str = "127.0.0.1:9092"
    """Kafka's first contacts: host:port, several separated by commas."""
    topic_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,100}$")] = ""
    """Put before every topic name, so that several installations share one Kafka."""
    kafka_file: Path | None = None
    """A TOML file of librdkafka client settings (kafka_file.py); `kafka` wins over it."""
    kafka: Annotated[
        dict[str, str], BeforeValidator(_scalar_text), Field(repr=False, validate_default=True)
    ] = {}
    """More librdkafka client settings, such as security; JSON in the environment."""
    instance_id: Annotated[str, Field(min_length=1, max_length=200, pattern=PLAIN)] = Field(
        default_factory=_default_instance
    )
    """Tells this process from others of the same service: host-pid unless given."""
    health_host: str = "127.0.0.1"
    health_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where /healthz, /readyz and /metrics are served; port 0 takes a free one."""
    health_file: Path | None = None
    """Where the bound address is written as JSON; see `bound_address.BoundAddress`."""
    beat_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """/healthz is 503 when the main loop has not beaten for so long."""
    stop_grace_s: Annotated[float, Field(gt=0)] = 10.0
    """How long an orderly stop may take before the process is ended by force."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector; traces and metrics are exported only when given."""
    tick_interval_s: Annotated[float, Field(gt=0)] = 1.0
    session_timeout_ms: Annotated[int, Field(ge=1000, le=300_000)] = 6000
    """A standby takes over so long after a leader fell silent (within the broker's limits)."""

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, value: str) -> str:
        for server in value.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise ValueError("must be host:port, several separated by commas")
        return value

    @field_validator("kafka_file")
    @classmethod
    def _can_read_file(cls, value: Path | None) -> Path | None:
        _kafka_file(value)
        return value

    @field_validator("kafka")
    @classmethod
    def _with_file(cls, value: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        found = {**_kafka_file(info.data.get("kafka_file")), **value}
        try:
            TokenFile.named(found)
        except TokenUnusable as error:
            raise ValueError(str(error)) from None
        return found

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be a URL such as http://127.0.0.1:4318")
        if parts.username or parts.password:
            raise ValueError(
                "must not hold credentials; put them into OTEL_EXPORTER_OTLP_HEADERS instead"
            )
        return value.rstrip("/")

    @field_serializer("kafka")
    def _hide_kafka_secrets(self, value: dict[str, str]) -> dict[str, str]:
        return {k: REDACTED if _is_kafka_secret(k) else redact(v) for k, v in value.items()}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  (pydantic-settings' signature)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file; nothing is read from .env."""
        path = os.environ.get(CONFIG_VARIABLE, "")
        return init_settings, env_settings, _FileSource(cls, path)

    @classmethod
    def load(cls, **arguments: Any) -> Self:
        """The settings of this process; `arguments` win over the environment and the file.

        Ends the process with code 2 when they are wrong, after a message on stderr that names
        the variable, the field and the way out, and never a value.
        """
        try:
            return cls(**arguments)
        except ValidationError as error:
            _refuse(
                [
                    f"{_variable(item.field)} (in the file: {item.field}): {item.message}"
                    for item in field_errors(error)
                ]
            )
        except SettingsError as error:
            field = re.search(r'field "([^"]+)"', str(error))
            name = field[1] if field else "(unknown)"
            _refuse([f"{_variable(name)} (in the file: {name}): must be valid JSON"])
        except SettingsFileError as error:
            _refuse([f"{CONFIG_VARIABLE}: the file that it names {error}"])

    def kafka_password(self) -> str:
        """The password of Kafka as `kafka_file` has it now, else as it was at the start."""
        return _kafka_file(self.kafka_file).get(
            "sasl.password", self.kafka.get("sasl.password", "")
        )

    def secret_values(self) -> frozenset[str]:
        """Every secret value among the settings, for redaction."""
        found = {value for key, value in self.kafka.items() if _is_kafka_secret(key)}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                found.add(value.get_secret_value())
        return frozenset(value for value in found if value)


class DecidingSettings(ServiceSettings):
    """The settings of every service with a log of its own."""

    store_url: Annotated[str, Field(min_length=1)] | None = None
    """The object store, for snapshots: file:///path or s3://bucket/prefix?endpoint=...; without
    one, a takeover folds the whole log."""
    snapshot_every: Annotated[int, Field(ge=1)] = 20_000
    """A snapshot is written after so many events."""
    snapshot_every_s: Annotated[float, Field(gt=0)] = 900.0
    """A snapshot is written after so many seconds, if there were events; also at a stop."""
    refold: bool = False
    """Pass over all snapshots at a takeover and fold the whole log; then unset it again."""


def _kafka_file(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        return read_kafka_file(path)
    except ConfigFileError as error:
        raise ValueError(str(error)) from None


def _is_kafka_secret(key: str) -> bool:
    return key in _SECRET_KAFKA_KEYS or (key != TOKEN_URL and is_secret_key(key))


def _variable(field: str) -> str:
    return ENV_PREFIX + field.partition(".")[0].upper()


def cannot_start(variable: str, error: Exception) -> NoReturn:
    """Ends the process with the reason: what this variable names cannot be used."""
    sys.stderr.write(f"cannot start: {variable}: {error}\n")
    raise SystemExit(EXIT_USAGE)


def _refuse(problems: list[str]) -> NoReturn:
    lines = ["cannot start, because of these settings:", *(f"  {item}" for item in problems)]
    if not any(item.startswith(CONFIG_VARIABLE) for item in problems):
        lines.append(
            "Set the variable, or the field in the TOML file that GANGLINE_CONFIG names; "
            "unset both for the default."
        )
    sys.stderr.write(redact("\n".join(lines)) + "\n")
    raise SystemExit(EXIT_USAGE)
