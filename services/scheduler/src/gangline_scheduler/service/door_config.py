"""Settings of the scheduler's door for questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from gangline_service.loopback import is_loopback
from gangline_service.settings import DecidingSettings


class DoorSettings(DecidingSettings):
    """Where the gateway asks (door.py), and who may."""

    question_host: str = "127.0.0.1"
    question_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port 0 takes a free one; without a port nobody can ask."""
    question_tls_cert: Path | None = None
    question_tls_key: Path | None = None
    tokens_file: Path | None = None
    """Tokens of the roles service and admin may ask; see gangline_service.tokens."""

    @model_validator(mode="after")
    def _door_is_guarded(self) -> Self:
        if self.question_port is None:
            return self
        if self.tokens_file is None:
            raise ValueError("question_port needs tokens_file: who may ask")
        if (self.question_tls_cert is None) != (self.question_tls_key is None):
            raise ValueError("question_tls_cert and question_tls_key must be given together")
        if self.question_tls_cert is None and not is_loopback(self.question_host):
            raise ValueError(
                "question_host is reachable from other machines: set question_tls_cert and "
                "question_tls_key, or bind to 127.0.0.1"
            )
        return self

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Certificate and key, None for plain HTTP."""
        cert, key = self.question_tls_cert, self.question_tls_key
        return None if cert is None or key is None else (cert, key)
