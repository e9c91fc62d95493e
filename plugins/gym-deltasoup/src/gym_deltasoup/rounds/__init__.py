"""Rounds of a community: what comes in, what is refused, and what is made of the rest."""
