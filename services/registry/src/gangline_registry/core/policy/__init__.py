"""Pure rules of the registry: statistics, verdicts, watching of data."""
