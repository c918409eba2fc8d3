"""What the agent decides, without I/O, clock or randomness: `core` is the way in."""
