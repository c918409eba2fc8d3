"""The processes: clients, loops and settings."""
