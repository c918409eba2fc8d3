"""The checkpoint service's decisions: pure, and free for anyone to import."""
