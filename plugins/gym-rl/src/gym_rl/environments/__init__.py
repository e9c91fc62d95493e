"""Environments that gym-rl brings, and the reward of what they give."""
