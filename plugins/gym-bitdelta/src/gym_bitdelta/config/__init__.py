"""The options of delta quantizers."""
