"""What hostile contributors send, to test a community with before somebody else does."""
