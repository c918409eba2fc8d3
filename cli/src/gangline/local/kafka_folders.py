"""Where the files of a secure embedded Kafka are; light, as commands look for them."""

from __future__ import annotations

from pathlib import Path


def secure_folder(kafka_dir: Path) -> Path:
    """Its certificates; there are none where it was never secure."""
    return kafka_dir / "secure"


def admin_file(kafka_dir: Path) -> Path:
    """Librdkafka's settings of its administrator; missing where it was plain last."""
    return secure_folder(kafka_dir) / "admin.toml"


def users_folder(kafka_dir: Path) -> Path:
    """Librdkafka's settings of each part."""
    return kafka_dir / "users"
