"""Registry: gates of models, protected aliases, rollback, and drift of data."""
