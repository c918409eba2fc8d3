"""Pure part of the registry service."""
