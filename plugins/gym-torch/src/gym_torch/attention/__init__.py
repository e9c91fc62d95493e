"""Attention in packed rows and to caches: what sees what, and the kernels that compute it."""
