"""Learning from judged answers: one answer to a prompt, and whether it is desirable."""
