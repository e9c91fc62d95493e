"""Differential privacy: exact accounting, noise, and what each contributor has spent. No torch is imported here."""
