"""The scheduler's log read back: the platform as it was, and under other policies."""
