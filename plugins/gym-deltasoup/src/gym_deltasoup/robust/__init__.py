"""Rules that tolerate hostile inputs, and what is done to inputs before a rule sees them."""
