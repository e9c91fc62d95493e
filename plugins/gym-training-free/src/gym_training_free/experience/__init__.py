"""Experiences: the library, what changes it, and what may not stand in it."""
