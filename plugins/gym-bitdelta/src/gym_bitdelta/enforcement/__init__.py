"""The safety threshold where a delta is written: its records are projected and scaled until it holds."""
