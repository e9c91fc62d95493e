"""Pairwise algorithms as a recipe sees them. Nothing heavy."""
