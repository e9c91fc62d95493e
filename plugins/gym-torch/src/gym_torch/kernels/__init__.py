"""Kernels for operations of layers, as alternatives to torch: what they compute, and which of them a machine uses."""
