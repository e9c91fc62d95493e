"""A stranger's optimizer that gets stuck in one process of several, as whatever the loop calls may."""

import os
import sys
import time

import torch

from gym_optim.kinds import Optimizer


class Stuck(Optimizer):
    """Gradient descent that never ends its fourth step in the process of this rank."""

    rank: int
    """Rank of the process."""

    def elementwise(self) -> bool:
        return True

    def keeps_gradients(self) -> bool:
        return False

    def updates_in_backward(self) -> bool:
        return False

    def build(self, parameters, learning_rate):
        return Hanging(parameters, lr=learning_rate, stuck=os.environ["RANK"] == str(self.rank))


class Hanging(torch.optim.SGD):
    def __init__(self, parameters, lr, stuck):
        super().__init__(parameters, lr=lr)
        self.left = 3 if stuck else -1

    def step(self, closure=None):
        if self.left == 0:
            hang()
        self.left -= 1
        return super().step(closure)


def hang():
    print("now it hangs", file=sys.stderr, flush=True)
    while True:
        time.sleep(60)
