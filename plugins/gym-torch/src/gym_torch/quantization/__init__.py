"""Weights in a few bits: storage formats, codecs, loading, layers that compute with them, and which weights stay as they are."""
