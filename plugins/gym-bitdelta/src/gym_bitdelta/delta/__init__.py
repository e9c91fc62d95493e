"""What a fine-tune changed, as it lies in a file: how codes are packed, what they stand for, who checks it."""
