"""Options of BCO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.unpaired.config.base import UnpairedPreference


class BCO(UnpairedPreference):
    """Binary classifier optimization: rewards tell good answers from bad ones, measured from the mean of all so far.

        loss = -log sigmoid(beta (r - z))  for a good answer,  -log sigmoid(beta (z - r))  for another one

    r: log-ratio of the answer to the reference, summed over its tokens; z: the mean of all r so far.

    Use it for: single judgements where `kto` saturates: answers that are far on the wrong side go on to pull.

    Differs: z is the mean over all steps so far, where the paper has a moving one; answers are not weighed by how alike the
    prompts of both kinds are.
    """

    loss: ClassVar[str] = "gym_preference.unpaired.losses:bco"
    reference_point: ClassVar[str] = "gym_preference.unpaired.reference_point:MeanReward"
    oracle: ClassVar[str] = "gym_preference.unpaired.naive_losses:bco"
