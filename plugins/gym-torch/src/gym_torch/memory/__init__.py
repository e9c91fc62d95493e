"""Activation memory: gradient checkpointing, offloading, tiling, and measuring what a run uses."""
