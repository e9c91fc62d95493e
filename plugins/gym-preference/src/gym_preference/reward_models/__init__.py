"""Models that give numbers to answers, or to their steps."""
