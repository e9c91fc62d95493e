"""The state of a user who is not in training: one file, written whole or not at all, from which training goes on exactly.

It holds the pairs, the state of the optimizer and what the source keeps as tensors, and in its header, as JSON, everything else.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gym_core import GymError, PluginError
from gym_core.files import replacing
from gym_optim.promises import named
from gym_personalization.user_run import UserRun
from gym_personalization.variants import STATE
from gym_torch.checkpoints.training_state import FIX, job_state, put_job
from gym_torch.distributed import optimizer_state


def write(user: UserRun) -> None:
    """Write where a user stands. Raises GymError where the disk does not take it, PluginError for a state that is not plain."""
    job, path = user.job, user.run.output / STATE
    try:
        tensors, plain = job.spread.optimizer(job.optimizer, user.policy)
    except optimizer_state.NotPlainError as error:
        raise PluginError(
            f"the optimizer of {named(job.optimizer_config)} keeps {error}, which no file can hold", key="optimizer"
        ) from None
    job.observer.saving(job.progress)
    state = job_state(job, plain, user.conditions)
    weights = {f"pair//{_name(where)}": weight.detach().cpu() for where, weight in user.policy.pairs.items()}
    held = weights | {f"optimizer//{name}": tensor for name, tensor in tensors.items()}
    held |= {f"source//{name}": tensor for name, tensor in job.source.tensors().items()}
    try:
        with replacing(path, alone=True) as building:
            save_file(
                {name: tensor.contiguous() for name, tensor in held.items()}, building, {"state": json.dumps(state)}
            )
    except OSError as error:
        raise GymError(
            f"the disk does not take the state: {error}", where=str(path), fix="make room; the last one is whole"
        ) from error
    job.saved = job.progress.reached


@torch.no_grad()
def read(user: UserRun) -> None:
    """Put a user where the file left it, bit for bit.

    Raises GymError where the file is damaged, or of another base, recipe or data.
    """
    path, job = user.run.output / STATE, user.job
    try:
        with safe_open(path, framework="pt") as file:
            state: dict[str, Any] = json.loads(file.metadata()["state"])
            held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise GymError(
            f"the state is damaged: {error}", where=str(path), fix="remove it: the user then begins anew"
        ) from error
    for name, value in user.conditions.items():
        if state["conditions"].get(name) != value:
            raise GymError(f"{name} is not what it was when this was written", where=str(path), fix=FIX)
    job.source.load_state_dict(state["source"], _of(held, "source"))
    pairs = _of(held, "pair")
    for where, weight in user.policy.pairs.items():
        weight.copy_(pairs[_name(where)])
    optimizer_state.put(job.optimizer, user.policy, _of(held, "optimizer"), state["optimizer"], job.spread.like)
    put_job(job, state)


def _name(where: tuple[str, str]) -> str:
    return ".".join(where)


def _of(held: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}//"): tensor for name, tensor in held.items() if name.startswith(f"{part}//")}
