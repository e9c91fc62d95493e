"""What a rule is given and returns, and the plain merges."""
