"""Kernels that do the work of layers beside torch's own: what each computes, and which of them a machine uses."""
