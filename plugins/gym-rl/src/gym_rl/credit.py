"""The last stage of a round: which tokens earned its rewards. From a round to columns that a loss reads.

The formulas are those of `gym_rl.advantages`, which know nothing of rounds; a function here gives them what they need. It takes
a round and the options of the algorithm, and returns `advantages` `[sum of lengths]` fp32 and perhaps more columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from gym_core.component import load_object
from gym_rl.answers import Round
from gym_rl.config import PolicyGradient

Credit = Callable[[Round, PolicyGradient], Mapping[str, Tensor]]


def of_answers(round_: Round, config: PolicyGradient) -> dict[str, Tensor]:
    """Give every token the advantage of its answer, which `config.advantage` makes of rewards and groups."""
    advantage: Callable[[Tensor, Tensor], Tensor] = load_object(config.advantage)
    return {"advantages": advantage(round_.rewards, round_.groups).float()[round_.owner]}
