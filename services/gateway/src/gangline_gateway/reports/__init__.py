"""Reports over a period: requested and allocated GPUs, their use, and waits."""
