"""Pipelines: steps that run when their inputs are there, triggers, and a cache of outputs."""
