"""What the trainer reads: text or prepared tokens, and the order in which it is read."""
