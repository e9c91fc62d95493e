"""What a contributor runs."""
