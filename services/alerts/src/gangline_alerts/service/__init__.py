"""The alerts service as a process: its settings, its file, and the delivery of notifications."""
