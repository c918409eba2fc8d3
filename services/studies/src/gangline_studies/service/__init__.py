"""The process around the core of the studies service."""
