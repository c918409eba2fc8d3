"""The tracking server that the SDK finds here."""

from support.fixtures.tracking import kept, server

__all__ = ["kept", "server"]
