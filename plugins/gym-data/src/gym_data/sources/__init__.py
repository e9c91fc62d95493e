"""Where rows come from. These classes import nothing heavy; the readers are in the modules beside."""

from gym_data.sources.config import File, Hub
from gym_data.sources.named import Named

__all__ = ["File", "Hub", "Named"]
