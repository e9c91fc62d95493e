"""Answers for many tenants at once: one model, and beside it the compressed delta of each."""
