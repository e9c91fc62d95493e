"""Pure functions of the papers: advantages, policy losses, divergences, off-policy weights, and how they add up."""
