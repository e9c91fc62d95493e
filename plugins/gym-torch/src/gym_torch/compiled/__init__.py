"""Compiled decoder layers: exported once, cached between runs, and used where they match the layer."""
