"""How far the trained policy is from the one that sampled before anything was learnt: by other arithmetic, or by mistake."""

from __future__ import annotations

from torch import Tensor

from gym_core import GymError
from gym_torch.console import say


def check(trainer: Tensor, sampled: Tensor, bound: float) -> float:
    """Return the mean difference of log-probabilities `[n]` of sampled tokens; NaN where the trainer did not score them.

    Raises GymError where it is above `bound`, in nats: then answers of another policy would be learnt from.
    """
    found = float((trainer - sampled).abs().nanmean())
    if not found <= bound:
        raise GymError(
            f"answers were sampled with log-probabilities that differ from the trainer's by {found:.3g} on average; "
            f"{bound:g} is the bound",
            key="algorithm.max_mismatch",
            fix="sample with the weights, template and temperature that are trained; `train: {precision: fp32}` is exact",
        )
    say(f"sampler and trainer differ by {found:.1e} nats a token")
    return found
