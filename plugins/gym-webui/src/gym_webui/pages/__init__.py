"""The pages of this package, one module each."""
