"""The alerts service: watches the cluster and its jobs by rules, and notifies receivers."""
