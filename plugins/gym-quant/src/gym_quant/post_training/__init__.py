"""Quantizers of finished models: compressed-tensors checkpoints, written layer by layer."""
