"""fault-manager: what is alive, what failed, and what shall happen."""
