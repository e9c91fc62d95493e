"""Algorithms that hold a policy to its reference token by token, as a recipe sees them. Nothing heavy."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gym_data.location import ModelName
from gym_preference.config import PairwisePreference, Referenced


class TDPO1(Referenced, PairwisePreference):
    """Token-level DPO: the chosen response may take the policy as far from its reference as the rejected one does.

        loss = -log sigmoid(beta (w - l - (K_l - K_w)))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens; K: KL(reference ||
    policy) over the vocabulary, summed over the tokens of that response.

    Use it for: a policy that departs too far from its reference under `dpo`, as `kl` in the log tells.
    """

    contribution: ClassVar[str] = "gym_preference.tdpo.objective:compared_pairs"
    objective: ClassVar[str] = "gym_preference.tdpo.objective:TDPOObjective"
    loss: ClassVar[str] = "gym_preference.tdpo.losses:tdpo1"
    oracle: ClassVar[str] = "gym_preference.tdpo.naive_losses:tdpo1"

    ref_model: ModelName | None = None
    """Reference model: a family, a folder or a Hub id; by default the model as it was before training. Its whole distribution of
    each token is compared, so its log-probabilities cannot be precomputed."""


class TDPO2(TDPO1):
    """Token-level DPO in which the rejected response alone is held to the reference.

        loss = -log sigmoid(beta (w - l - alpha (K_l - sg(K_w))))

    w, l: log-ratios to the reference of the chosen and the rejected response, summed over their tokens; K: KL(reference ||
    policy) over the vocabulary, summed over the tokens of that response; sg: no gradient.

    Use it for: what `tdpo1` is for; the chosen response is free to move here, which the paper found better.
    """

    loss: ClassVar[str] = "gym_preference.tdpo.losses:tdpo2"
    oracle: ClassVar[str] = "gym_preference.tdpo.naive_losses:tdpo2"

    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Sequential KL coefficient (alpha): 0 makes it DPO."""
