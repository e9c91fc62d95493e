"""gym-drill: kills a run again and again and shows that it ends where an uninterrupted one does. It imports no torch."""

__version__ = "0.1.0"
