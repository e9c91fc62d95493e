"""Gym and its peers on the same model, samples and optimizer, each in a process of its own."""
