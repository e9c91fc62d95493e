"""What a round tells people."""
