"""Finds codes and scales for what a fine-tune changed. Matrices in, matrices out; nothing here knows of files or models."""
