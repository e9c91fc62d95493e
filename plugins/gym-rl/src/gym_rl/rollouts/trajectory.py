"""One completion as it was sampled: in one turn, or in several with what an environment showed the model in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gym_rl.environment import Message
from gym_torch.generation.row import Completion


@dataclass
class Trajectory:
    """What was sampled, and what it was shown."""

    completion: Completion = field(default_factory=Completion)  #: what was sampled, in all turns
    text: str = ""  #: of the last turn, without the token that ended it
    observations: dict[int, list[int]] = field(default_factory=dict)
    """By the place of a sampled token, the tokens of the environment that stand before it."""
    turns: list[Message] = field(default_factory=list)  #: all messages after the prompt, where there was an environment
    reward: float | None = None  #: what the environment gave; None where there was none
    metrics: dict[str, float] = field(default_factory=dict)  #: what it has logged, by name

    @property
    def tokens(self) -> list[int]:
        """All tokens after the prompt."""
        made: list[int] = []
        for place, token in enumerate(self.completion.tokens):
            made += [*self.observations.get(place, ()), token]
        return made

    @property
    def size(self) -> int:
        """How many they are."""
        return len(self.completion.tokens) + sum(map(len, self.observations.values()))


def observations_of(trajectories: Sequence[Trajectory]) -> tuple[Tensor, Tensor]:
    """Return for each sampled token how many of an environment stand before it, `[sum of lengths]` int64; and these, int32."""
    sizes, shown = [], []
    for one in trajectories:
        for place in range(len(one.completion.tokens)):
            before = one.observations.get(place, [])
            sizes.append(len(before))
            shown += before
    return torch.tensor(sizes, dtype=torch.int64), torch.tensor(shown, dtype=torch.int32)
