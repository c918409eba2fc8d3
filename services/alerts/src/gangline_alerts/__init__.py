"""The alerts service: what is out of order, and who is notified of it."""
