"""Pure part of the studies service."""
