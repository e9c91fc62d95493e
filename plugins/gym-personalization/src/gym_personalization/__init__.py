"""gym-personalization: a model for every user. The adapters of many users train together over one base."""

from __future__ import annotations

import gym_torch  # noqa: F401 - it keeps back what libraries warn of, before anything below imports transformers

__version__ = "0.1.0"
