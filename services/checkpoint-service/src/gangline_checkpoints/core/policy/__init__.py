"""The rules of the checkpoint service, as pure functions."""
