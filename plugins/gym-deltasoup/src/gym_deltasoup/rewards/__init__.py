"""Who gets how much of the pool."""
