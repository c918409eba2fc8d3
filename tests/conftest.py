"""Fixtures of the real parts, started once per session and only when a test asks for them."""

from __future__ import annotations

pytest_plugins = ["kafka_fixture", "platform_fixture"]
