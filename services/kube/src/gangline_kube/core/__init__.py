"""Decisions without I/O: nodes, settings of agents, and TrainingJob objects."""
