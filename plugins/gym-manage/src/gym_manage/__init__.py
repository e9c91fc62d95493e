"""Commands around an installation: what is installed, what of it is used, whose a name is, what a run would call."""
