"""Checkpoints on this node: uploaded, fetched, verified, replaced where damaged, and pruned."""
