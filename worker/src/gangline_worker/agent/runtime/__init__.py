"""Starts, watches and ends the ranks of this node, and receives what they send."""
