"""The rules of the fault manager, as pure functions."""
