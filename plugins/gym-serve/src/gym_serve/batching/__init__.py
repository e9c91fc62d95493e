"""Engines that decode rows: requests become rows of a batch, and their tokens replies."""
