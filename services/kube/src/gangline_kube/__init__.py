"""Kubernetes: TrainingJob objects and nodes, beside the REST of the gateway."""
