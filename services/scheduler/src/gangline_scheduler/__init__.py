"""Gang scheduler: job states and GPU allocations."""
