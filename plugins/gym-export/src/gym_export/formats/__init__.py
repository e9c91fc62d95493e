"""The formats that artifacts are written in, a module each."""
