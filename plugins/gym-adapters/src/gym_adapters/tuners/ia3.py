"""(IA)3 through peft (arXiv:2205.05638), which is right once it is told which layers."""

from __future__ import annotations

from peft import IA3Config, PeftConfig
from torch import nn
from transformers import PreTrainedModel

from gym_adapters.config.base import split
from gym_adapters.config.ia3 import IA3
from gym_adapters.peft_base import PeftAdapter
from gym_adapters.target_modules import within
from gym_core import GymError

#: what model families call the projections to keys and values, and those out of the feed-forward layers
KEYS_VALUES = frozenset({"k_proj", "v_proj", "key", "value", "wk", "wv"})
FEED_FORWARD = frozenset({"down_proj", "fc2", "w2", "dense_4h_to_h"})


class IA3Adapter(PeftAdapter[IA3]):
    """Keys, values and hidden units times a vector each (arXiv:2205.05638, section 3.3); all are one at first.

    peft knows the layers of some families by name; here any model will do whose projections have the usual names.
    """

    def all_modules(self, model: PreTrainedModel) -> list[str]:
        """Return the projections of these kinds that the model has."""
        found = _linear(model) & (KEYS_VALUES | FEED_FORWARD)
        if not found & KEYS_VALUES:
            raise GymError(
                f"{type(model).__name__} has no projections to keys and values by a name known here",
                key="adapter.target_modules",
                fix="name the layers to scale, such as `target_modules: qkv_proj`",
            )
        return sorted(found)

    def peft_config(self, target_modules: list[str], modules_to_save: list[str] | None) -> PeftConfig:
        """Return the options of (IA)3."""
        inputs = split(self.config.feedforward_modules)
        wanted = FEED_FORWARD if inputs == ("all",) else inputs
        chosen = [path for path in target_modules if any(within(path, name) for name in wanted)]
        outside = [name for name in inputs if name != "all" and not any(within(path, name) for path in target_modules)]
        if outside:
            raise GymError(
                f"`{outside[0]}` is not among `target_modules`",
                key="adapter.feedforward_modules",
                fix=", ".join(target_modules),
            )
        return IA3Config(
            target_modules=target_modules,
            feedforward_modules=chosen,
            modules_to_save=modules_to_save,
            task_type="CAUSAL_LM",
        )


def _linear(model: nn.Module) -> set[str]:
    return {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
