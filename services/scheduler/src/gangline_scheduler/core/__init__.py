"""The scheduler's decisions: pure, and free for anyone to import."""
