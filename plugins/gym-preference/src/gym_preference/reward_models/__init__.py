"""Models that give numbers to responses, or to their steps."""
