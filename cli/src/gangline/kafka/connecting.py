"""How a command reaches a Kafka cluster as its administrator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from gangline.errors import CliError, ExitCode
from gangline_bus.kafka_token import TokenFile, TokenUnusable, client_settings
from gangline_service.config_file import ConfigFileError
from gangline_service.kafka_file import read_kafka_file

ADMIN_TIMEOUT_S = 20.0
_CONTACT_S = 10.0


def read_settings(path: Path) -> dict[str, str]:
    """A file of librdkafka's settings. Raises CliError, which shows no value."""
    try:
        return read_kafka_file(path)
    except ConfigFileError as error:
        raise CliError(str(error), code=ExitCode.USAGE) from None


@dataclass
class _Errors:
    """Errors that no call returns: a refused password looks like a time-out without them."""

    last: KafkaError | None = field(default=None)

    def note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - its own error
            self.last = error


def connect_admin(settings: Mapping[str, str]) -> AdminClient:
    """A client that the cluster has let in. Raises CliError with the cluster's reason."""
    errors = _Errors()
    own: dict[str, Any] = {"log_level": 0, "error_cb": errors.note}
    admin = AdminClient({**_with_token(settings), **own})
    where = settings.get("bootstrap.servers", "")
    try:
        admin.list_topics("gangline.requests", timeout=_CONTACT_S)
    except KafkaException as error:
        admin.poll(0)
        reason = errors.last or error.args[0]
        raise CliError(
            f"Kafka at {where}: {reason.str()}", "check the address and the file of settings"
        ) from None
    return admin


def _with_token(settings: Mapping[str, str]) -> dict[str, Any]:
    try:
        file = TokenFile.named(settings)
        if file is not None:
            file.read()
    except TokenUnusable as error:
        raise CliError(str(error), code=ExitCode.USAGE) from None
    return client_settings(settings, file)


@contextmanager
def admin_errors(failed: str) -> Iterator[None]:
    """Turn an error of the cluster into one line for the user."""
    try:
        yield
    except KafkaException as error:
        hint = "the administrator of the cluster needs Alter and Describe on the cluster"
        raise CliError(f"{failed}: {error.args[0].str()}", hint) from None
    except TimeoutError:
        raise CliError(f"{failed}: no answer within {ADMIN_TIMEOUT_S:.0f} s") from None
