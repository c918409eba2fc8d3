"""The scheduler as a process: its settings."""
