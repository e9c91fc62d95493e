"""The community server."""
