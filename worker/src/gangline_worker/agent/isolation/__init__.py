"""Keeps the ranks of one team from those of another: users, sandboxes, control groups."""
