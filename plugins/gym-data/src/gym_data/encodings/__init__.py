"""From rows of each shape to sequences of tokens."""
