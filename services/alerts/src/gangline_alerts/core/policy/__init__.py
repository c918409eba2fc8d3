"""The rules: thresholds, conditions, causes and routes."""
