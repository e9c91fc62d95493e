"""Learning from pairs, held to the reference token by token (TDPO)."""
