"""The model: loaded, laid out, adapted, and what is computed with it."""
