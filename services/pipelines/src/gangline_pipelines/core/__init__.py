"""Pure part of the pipelines service."""
