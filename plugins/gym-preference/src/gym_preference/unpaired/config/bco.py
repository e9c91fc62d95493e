"""Options of BCO. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from gym_preference.unpaired.config.base import UnpairedPreference


class BCO(UnpairedPreference):
    """Binary classifier optimization: rewards tell good responses from bad ones, measured from the mean of all so far.

        loss = -log sigmoid(beta (r - z))  for a good response,  -log sigmoid(beta (z - r))  for another one

    r: log-ratio of the response to the reference, summed over its tokens; z: the mean of all r so far.

    Use it for: single labels where `kto` saturates: responses that are far on the wrong side go on to pull.

    Differs: z is the mean over all steps so far, where the paper has a moving one; responses are not weighed by how alike the
    prompts of both kinds are.
    """

    loss: ClassVar[str] = "gym_preference.unpaired.losses:bco"
    reference_point: ClassVar[str] = "gym_preference.unpaired.reference_point:MeanReward"
    oracle: ClassVar[str] = "gym_preference.unpaired.naive_losses:bco"
