"""The scheduler as a process: its settings, and the server for questions."""
