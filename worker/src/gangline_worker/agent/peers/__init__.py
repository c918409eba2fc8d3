"""Copies of checkpoints from agent to agent, and what agents confirm for each other."""
