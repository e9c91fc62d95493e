"""Exporters: artifacts as plain model directories."""
