"""Answers to a file of rows, which may be stopped and continued."""
