"""The rules of early stopping, as pure functions."""
