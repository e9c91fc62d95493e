"""Secure aggregation: the server learns sums of groups, and nothing of one member's change (Bonawitz et al. 2017)."""
