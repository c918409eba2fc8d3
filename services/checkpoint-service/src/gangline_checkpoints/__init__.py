"""checkpoint-service: what counts as a checkpoint, and how long it is kept."""
