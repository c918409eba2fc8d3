"""The process around the core of the pipelines service."""
