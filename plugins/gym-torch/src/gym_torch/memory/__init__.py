"""What layers keep for the backward pass, what they compute again, and the memory that a run takes."""
