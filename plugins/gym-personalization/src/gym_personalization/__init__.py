"""gym-personalization: a model for every user. The adapters of many users train together over one base."""

from __future__ import annotations

__version__ = "0.1.0"
