"""Options of the mergers. No torch is imported here."""
