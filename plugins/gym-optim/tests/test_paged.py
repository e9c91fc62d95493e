"""Paged 8-bit AdamW: refused by name where it cannot run, and on a GPU as good as AdamW in a quarter of the state."""

from __future__ import annotations

from copy import deepcopy
from importlib.util import find_spec

import pytest
import torch
from optim_bench import random
from torch import nn

from gym_core import GymError
from gym_optim.config import AdamW, PagedAdamW8bit


@pytest.mark.proves("paged_adamw_8bit")
@pytest.mark.skipif(torch.cuda.is_available(), reason="what is refused without CUDA")
def test_without_cuda_it_is_refused_by_name() -> None:
    with pytest.raises(GymError, match="there is no CUDA here") as caught:
        PagedAdamW8bit().build(parameters=[nn.Parameter(torch.zeros(4, 4))], learning_rate=0.1)
    assert caught.value.problems[0].key == "optimizer" and "adamw_8bit" in caught.value.problems[0].fix


@pytest.mark.proves("paged_adamw_8bit")
@pytest.mark.gpu
def test_it_ends_where_adamw_does_and_goes_on_from_its_state() -> None:
    if find_spec("bitsandbytes") is None:
        pytest.skip("bitsandbytes is not installed")
    goal = random(128, 128).float().cuda()

    def end(options: AdamW) -> tuple[float, torch.optim.Optimizer, nn.Parameter]:
        parameter = nn.Parameter(torch.zeros(128, 128, device="cuda"))
        groups = [{"params": [("layers.0.weight", parameter)], "role": "matrix"}]
        optimizer = options.build(parameters=groups, learning_rate=0.05)
        for _ in range(100):
            parameter.grad = parameter.detach() - goal
            optimizer.step()
        return (parameter.detach() - goal).square().mean().item(), optimizer, parameter

    loss, optimizer, parameter = end(PagedAdamW8bit())
    assert loss < 2 * end(AdamW())[0] + 1e-3
    state = optimizer.state[parameter]
    codes = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dtype == torch.uint8]
    assert sum(value.numel() for value in codes) == 2 * parameter.numel()
    other = nn.Parameter(parameter.detach().clone())
    groups = [{"params": [("layers.0.weight", other)], "role": "matrix"}]
    successor = PagedAdamW8bit().build(parameters=groups, learning_rate=0.05)
    successor.load_state_dict(deepcopy(optimizer.state_dict()))
    for one, its in ((parameter, optimizer), (other, successor)):
        one.grad = one.detach() - goal
        its.step()
    assert torch.equal(parameter, other)
