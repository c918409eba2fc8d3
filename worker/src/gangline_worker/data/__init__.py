"""What the trainer reads: text, and the order in which it is read."""
