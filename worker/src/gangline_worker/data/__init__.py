"""The trainer's data: text or prepared tokens, and the order in which they are read."""
