"""The report of a run that unlearns."""
