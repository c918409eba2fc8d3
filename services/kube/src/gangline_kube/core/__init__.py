"""Decisions without I/O: nodes, pods and TrainingJob objects."""
