"""gym-tune: searches hyperparameters of a recipe. Every trial is an ordinary run of its own; no torch is imported."""

__version__ = "0.1.0"
