"""The agent's decisions, without I/O, clock or randomness: `core` is the way in."""
