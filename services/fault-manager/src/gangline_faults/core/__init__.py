"""The fault manager's decisions: pure, and free for anyone to import."""
