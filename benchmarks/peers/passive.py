"""Imported before torch, it lets torch's threads sleep while they wait, as Gym's own commands do."""

from gym_torch.kernels.library_settings import wait_passively

wait_passively()
