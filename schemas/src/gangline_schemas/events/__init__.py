"""Every event that Gangline publishes or reads, one module per topic."""
