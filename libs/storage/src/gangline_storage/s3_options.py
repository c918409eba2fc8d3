"""How a store in a bucket is reached; without boto3, which takes a third of a second to import."""

from __future__ import annotations

from dataclasses import dataclass, field

from gangline_storage.retry import Retry


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """A key pair given explicitly, instead of boto3's own chain."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class S3Options:
    """Sizes and limits of the client.

    A request waits at most `read_timeout_s` for each answer, so a dead server costs
    at most `retry.attempts` times that plus the delays between.
    """

    part_size_bytes: int = 8 << 20
    part_threads: int = 4
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 60.0
    retry: Retry = field(default_factory=Retry)

    def __post_init__(self) -> None:
        """Refuse sizes that S3 would refuse later."""
        if self.part_size_bytes < 5 << 20:
            raise ValueError("part_size_bytes: S3 takes no part under 5 MiB (5242880)")
        if self.part_threads < 1:
            raise ValueError("part_threads: must be at least 1")
