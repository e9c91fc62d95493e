"""Algorithms of reinforcement learning as a recipe sees them. Nothing heavy."""
