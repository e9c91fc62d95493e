"""Options of the algorithms over unpaired responses. Imports nothing heavy."""
