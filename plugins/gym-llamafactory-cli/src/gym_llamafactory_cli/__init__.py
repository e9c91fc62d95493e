"""LLaMA-Factory's commands, each carried out by one of Gym's."""
