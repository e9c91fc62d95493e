"""Routing replay: the experts that a mixture sent each token to when it was sampled, kept with a round and forced in its update.

`gym_torch.model.expert_routing` forces them; here they are carried from the completions of an engine to the batches of an
objective.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gym_core import GymError
from gym_rl.rollouts.experience import Rollout
from gym_torch.batch import Example
from gym_torch.generation.row import Completion
from gym_torch.model.expert_routing import FREE, Experts, lay_out
from gym_torch.packing import Layout


def recorded_experts(made: Sequence[Completion], group_size: int) -> tuple[Tensor, Tensor]:
    """Return the experts of completions `[sum of lengths, layers, k]` and of their groups' prompts `[groups, longest, layers,
    k]`.

    The last token of a completion, which predicts nothing, is FREE. Raises GymError where an engine did not record them.
    """
    if not all(len(answer.routed) == len(answer.tokens) for answer in made):
        raise GymError(
            "the engine does not record which experts a token went to",
            key="algorithm.routing_replay",
            fix="set `rollouts: local`, or leave `routing_replay` out",
        )
    last = torch.full_like(made[0].routed[0][:1], FREE)
    answers = [part for answer in made for part in (*answer.routed[1:], last)]
    return torch.cat(answers), pad_sequence([answer.routed[0] for answer in made[::group_size]], True, FREE)


def concatenate_prompt_experts(prompts: Sequence[Tensor | None]) -> Tensor | None:
    """Return what several rounds keep of their prompts as one."""
    known = [experts for each in prompts if each is not None for experts in each]
    return pad_sequence(known, True, FREE) if known else None


def lay_out_experts(
    layout: Layout, pieces: Sequence[Example], prefixes: Sequence[int | None], answers: Sequence[Rollout]
) -> Tensor | None:
    """Return the experts of a batch `[rows, length, layers, k]`, None where none were recorded.

    `pieces` are prompts and `answers`, each behind the prompt that its prefix names.
    """
    if "experts" not in answers[0].columns:
        return None
    told, experts = iter(answers), dict[int, Experts]()
    for place, prefix in enumerate(prefixes):
        if prefix is not None:
            answer = next(told)
            assert answer.prompt_experts is not None
            experts[prefix], experts[place] = answer.prompt_experts, answer.columns["experts"]
    return lay_out(layout, pieces, prefixes, [experts[place] for place in range(len(pieces))])
