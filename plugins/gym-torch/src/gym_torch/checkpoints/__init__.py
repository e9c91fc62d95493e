"""Checkpoints, exact resume, and artifacts: atomic folders, and the state of a job."""
