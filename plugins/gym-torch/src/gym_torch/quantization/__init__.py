"""Weights that are held in a few bits: as they are stored, loaded, computed with and told from others."""
