"""Where the vectors of inputs lie on disk."""
