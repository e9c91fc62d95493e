"""Options of the algorithms that compare a completion with the others to its prompt. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from gym_rl.config.base import PolicyGradient


def _named(value: Any) -> Any:
    """Return the name of what TRL also writes as true or false."""
    return {True: "group", False: "none"}[value] if isinstance(value, bool) else value


Names = Literal["group", "batch", "none"]
ScaleRewards = Annotated[Names, BeforeValidator(_named, json_schema_input_type=Names | bool)]


class GroupRelative(PolicyGradient):
    """Base of the algorithms whose advantage is the reward less the mean of its group, and that leave open what divides it.

    `A = (r - mean(group)) / (std(group) + 1e-4)`, with `std(round)` in its place, or `A = r - mean(group)`: see
    `gym_rl.formulas.advantages`. Rewards are those of the whole round, whatever process sampled the completions.
    """

    credit: ClassVar[str] = "gym_rl.rollouts.compute_advantages:group_relative"

    scale_rewards: ScaleRewards = "group"
    """Scale rewards: what divides reward minus the mean of its group: 1e-4 plus the unbiased deviation (ddof 1) of the rewards of
    its `group`, or of all completions of the round (`batch`, arXiv:2508.08221), or nothing (`none`, as Dr. GRPO). True and false
    are `group` and `none`, as in TRL."""
