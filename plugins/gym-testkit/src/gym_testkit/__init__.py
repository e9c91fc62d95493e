"""gym-testkit: `pytest --gym-dist gym-foo` holds a plugin to the laws of its kind; `gym new-plugin` writes one.

pytest enters through `gym_testkit.plugin`.
"""

from __future__ import annotations

__version__ = "0.1.0"
