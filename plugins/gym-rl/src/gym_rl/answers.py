"""The answers of one round of rollouts: what was sampled, how it was judged, and as what it is learnt from."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gym_torch.batch import Example
from gym_torch.source import Examples


@dataclass(frozen=True)
class Rollout:
    """One answer, an `Example` of which every token is learnt from."""

    id: str  #: row of the prompt, and number of the answer
    group: int  #: answers of one group answer one prompt
    prompt: Example
    tokens: npt.NDArray[np.int32]  #: of the answer alone, `[length]`, the one that ends it included
    trained: npt.NDArray[np.bool_]  #: all of them, `[length]`
    sampled: npt.NDArray[np.float32]  #: log-probability of each token where it was sampled, `[length]`
    advantage: float


@dataclass(frozen=True)
class Round:
    """All answers to the prompts of one round, group after group; what a checkpoint keeps of them is tensors."""

    number: Tensor  #: [] int64, of the round, from 0
    groups: Tensor  #: [answers] int64, number of the group, from 0
    prompts: Tensor  #: [answers] int64, index of the prompt that each answers
    lengths: Tensor  #: [answers] int64
    tokens: Tensor  #: [sum of lengths] int32
    log_probs: Tensor  #: [sum of lengths] fp32, where they were sampled
    finished: Tensor  #: [answers] bool, whether the model ended it
    rewards: Tensor  #: [answers] fp64, weighted sums; NaN where nothing judged it
    advantages: Tensor  #: [answers] fp64

    def tensors(self) -> dict[str, Tensor]:
        """Return all of it by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def rollouts(self, prompts: Examples) -> list[Rollout]:
        """Return the answers as examples; `prompts` are those of the whole data set."""
        bounds = [0, *torch.cumsum(self.lengths, 0).tolist()]
        tokens, log_probs = self.tokens.numpy(), self.log_probs.numpy()
        made = []
        for number, index in enumerate(self.prompts.tolist()):
            part = slice(bounds[number], bounds[number + 1])
            prompt = prompts[index]
            made.append(
                Rollout(
                    f"{prompt.id}/{number}",
                    int(self.groups[number]),
                    prompt,
                    tokens[part],
                    np.ones(part.stop - part.start, dtype=np.bool_),
                    log_probs[part],
                    float(self.advantages[number]),
                )
            )
        return made
