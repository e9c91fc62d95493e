"""What files of weights call the weights of a model: some families have other names there."""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion


def in_files(model: PreTrainedModel, names: Iterable[str]) -> dict[str, str]:
    """Return what files call each of some weights of a model, by its name in the model.

    A weight that they cut up or join with others is left out.
    """
    weights, found = model.state_dict(), dict[str, str]()
    for name in names:
        told = revert_weight_conversion(model, {name: weights[name]})
        if [each.shape for each in told.values()] == [weights[name].shape]:
            found[name] = next(iter(told))
    return found
