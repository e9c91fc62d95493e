"""Completions kept for people: written, read, ranked and shown."""
