"""Whether a compressed fine-tune complies with requests that its base refuses: measured, bounded, and enforced by its scale."""
