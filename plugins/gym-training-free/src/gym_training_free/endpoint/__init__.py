"""Asking a model through an endpoint: requests, what they cost, what was asked already."""
