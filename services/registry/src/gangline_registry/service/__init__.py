"""The process around the core of the registry service."""
