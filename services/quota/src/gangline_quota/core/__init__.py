"""Quota's decisions: pure, and free for anyone to import."""
