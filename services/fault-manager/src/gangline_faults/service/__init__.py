"""The fault manager as a process: its settings."""
