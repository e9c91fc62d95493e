"""Learning from labelled responses: one response to a prompt, and whether it is desirable."""
