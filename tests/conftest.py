"""Fixtures of the real parts, started once per session and only when a test asks for them."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["kafka_fixture", "platform_fixture"]

settings.register_profile("gangline", deadline=None)  # a slow machine breaks no property
settings.load_profile("gangline")
