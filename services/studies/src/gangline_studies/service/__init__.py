"""The studies service as a process: its settings, and the samplers."""
